"""Two machines as network namespaces, and a cable that loses, delays and holds packets.

Each machine has a TUN device, and a thread carries packets from one to the other. So no module of
the kernel is needed that shapes traffic.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TO_REPLICA, TO_STORE = 0, 1
"""The directions, each by the machine that sends: the store is machine 0."""
ADDRESSES = ("10.78.0.1", "10.78.0.2")
_TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET_BYTES = 1 << 16


def why_not() -> str:
    """Why this process may not make such machines; "" if it may."""
    if os.geteuid() or not shutil.which("ip"):
        return "namespaces need root and ip"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"no {_TUN}"
    allowed = subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True)
    return "" if allowed.returncode == 0 else "the kernel refuses namespaces"


class Cable:
    """Carries packets between two devices, until `close`.

    `loss` is the share of packets that are lost, `delay` in seconds. `held` has the directions in
    which nothing comes through: such packets are lost.
    """

    def __init__(self, ends: tuple[int, int], seed: int) -> None:
        self._ends, self._random = ends, random.Random(seed)
        self.loss, self.delay = 0.0, 0.0
        self.held: set[int] = set()
        self.lost = 0
        self._waiting: list[tuple[float, int, int, bytes]] = []
        """When a packet arrives, its number, its direction, and its bytes."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        number = 0
        while not self._is_over.is_set():
            ready, _, _ = select.select(self._ends, [], [], 0.01)
            for end in ready:
                packet, way = os.read(end, _PACKET_BYTES), self._ends.index(end)
                if way in self.held or self._random.random() < self.loss:
                    self.lost += 1
                    continue
                number += 1
                heapq.heappush(self._waiting, (time.monotonic() + self.delay, number, way, packet))
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, way, packet = heapq.heappop(self._waiting)
                with contextlib.suppress(OSError):  # the device is going away
                    os.write(self._ends[1 - way], packet)


class Machines:
    """The two machines. `start` starts a process of one, which `close` kills."""

    def __init__(self, mark: str) -> None:
        self.names = (f"{mark}-0", f"{mark}-1")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, number: int, *words: str) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", self.names[number], sys.executable, *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def two_machines(seed: int) -> Iterator[tuple[Machines, Cable]]:
    """Machines that are gone afterwards, with their processes."""
    machines = Machines(f"cltr-{os.getpid()}")
    with contextlib.ExitStack() as stack:
        ends = []
        for name, address in zip(machines.names, ADDRESSES, strict=True):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            ends.append(_device(name, address))
            stack.callback(os.close, ends[-1])
        cable = Cable((ends[0], ends[1]), seed)
        stack.callback(cable.close)
        stack.callback(machines.close)
        yield machines, cable


def _device(machine: str, address: str) -> int:
    """A TUN device of a machine, and its descriptor here."""
    fd, name = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK), machine.replace("-", "")[:15]
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    _ip("link", "set", name, "netns", machine)
    _ip("-n", machine, "addr", "add", f"{address}/24", "dev", name)
    for link in (name, "lo"):
        _ip("-n", machine, "link", "set", link, "up")
    return fd


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
