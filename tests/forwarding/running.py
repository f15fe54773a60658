"""Forwarders for tests: in this process, or as a command that can be killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.errors import MessageRefused
from commitlog.forwarding.forward_settings import settings_of
from commitlog.forwarding.forwarder import Forwarder
from tests.waiting import wait_until


def forward(store: Path, url: str, **options: Any) -> None:
    """Forwards what is there, in this process. Raises what the forwarder does."""
    Forwarder(settings_of(store, url, once=True, **options), threading.Event()).run()
    SEGMENTS.clear()


def forward_when_allowed(store: Path, url: str, what: str, **options: Any) -> None:
    """Forwards once the broker has heard of a new limit: until then it refuses a message."""

    def goes_on() -> bool:
        try:
            forward(store, url, **options)
        except MessageRefused:
            return False
        return True

    wait_until(goes_on, what)


def command(store: Path, url: str, *options: str) -> subprocess.Popen[bytes]:
    """Starts `commitlog forward`."""
    words = [sys.executable, "-m", "commitlog", "forward", str(store), url, *options]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextmanager
def forwarding(store: Path, url: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`commitlog forward` during the with-block; then it is gone, however it ended."""
    process = command(store, url, *options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
