"""What `run` and `serve` tell the service manager that started them, such as systemd.

The protocol is that of sd_notify(3): lines of NAME=VALUE in a datagram to the socket that
NOTIFY_SOCKET names. Without that variable nothing is told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from commitlog.reading.view import StoreView
from commitlog.shm.layout import Header
from commitlog.system.clock import LONG_AGO_NS, SYSTEM_CLOCK
from commitlog.watching.health import DEFAULT_LIMITS

_EXTEND_SECONDS = 10
"""How often a start that takes long asks for more time. It asks for three times as much."""

log = logging.getLogger(__name__)


class ServiceManager:
    """The service manager, if there is one."""

    def __init__(self) -> None:
        name = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name  # "@": a name without a file
        for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog_ns = int(os.environ.get("WATCHDOG_USEC", "0")) * 1000 // 2 if for_us else 0
        self._watched_ns = LONG_AGO_NS
        self._view: StoreView | None = None
        self._status = ""

    def tell(self, *lines: str) -> None:
        """Sends lines of NAME=VALUE.

        If the service manager does not listen, there is a warning, and the store goes on.
        """
        if self._address:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                    sender.sendto("\n".join(lines).encode(), self._address)
            except OSError as error:
                log.warning("the service manager at NOTIFY_SOCKET was not told %s: %s", ", ".join(lines), error)

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Asks for more time again and again while a store is opened.

        The recovery of a large store may take longer than TimeoutStartSec.
        """
        if not self._address:
            yield
            return
        done = threading.Event()

        def extend() -> None:
            while not done.is_set():
                microseconds = 3 * _EXTEND_SECONDS * 1_000_000
                self.tell(f"EXTEND_TIMEOUT_USEC={microseconds}", "STATUS=opening the store")
                done.wait(_EXTEND_SECONDS)

        asking = threading.Thread(target=extend, name="commitlog-starting", daemon=True)
        asking.start()
        try:
            yield
        finally:
            done.set()
            asking.join()

    def ready(self, store: Path) -> None:
        """Says that the store runs."""
        self._view = StoreView(store)
        self.tell("READY=1")
        self.watch()

    def watch(self) -> None:
        """Says now and then that the supervisor lives. Its heartbeat in shared memory shows that.

        A service manager that hears nothing for its WatchdogSec starts the service again.
        """
        now = SYSTEM_CLOCK.monotonic_ns()
        if not self._address or self._view is None or self._view.control is None:
            return
        silent_ms = (now - self._view.control.words[Header.SUPERVISOR_HEARTBEAT]) // 1_000_000
        is_silent = silent_ms > DEFAULT_LIMITS.silent_ms
        self._say("the supervisor gives no heartbeat" if is_silent else "running")
        if self._watchdog_ns and not is_silent and now - self._watched_ns >= self._watchdog_ns:
            self._watched_ns = now
            self.tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Says that the store drains and stops."""
        if self._view is not None:
            self._view.close()
            self._view = None
        self.tell("STOPPING=1", "STATUS=draining")

    def _say(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self.tell(f"STATUS={status}")
