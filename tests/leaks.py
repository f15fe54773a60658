"""What a test may leave behind: nothing.

Looks at descriptors, threads, processes and shared memory, before and after each test.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.processes import stat_fields
from commitlog.opening.stray_pools import STORE_NAME
from commitlog.system import threads
from tests.waiting import wait_until

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
BASE_PREFIX = "clt-"  # prefix of the directories in which tests keep their pools
_SPARK_SOCKET = re.compile(r"/\.[0-9a-f]{8}-[0-9a-f-]{27}\.sock$")
SUSPECTS = ("commitlog-", "psm_", "sem.", "test-of-leaks")  # our pools, and what multiprocessing makes


def pids() -> frozenset[int]:
    """All processes of the machine, zombies included."""
    return frozenset(int(name) for name in os.listdir(PROC) if name.isdigit())


def parent_and_state(pid: int) -> tuple[int, str]:
    """From the process table; (0, "") for a process that is gone."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0, ""
    return int(fields[1]), fields[0].decode()


def describe(pid: int) -> str:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return f"process {pid}: {command[:200] or 'ended, and nobody waited for it'}"


def descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they are."""
    found = {}
    for name in os.listdir(f"{PROC}/self/fd"):
        try:
            found[int(name)] = os.readlink(f"{PROC}/self/fd/{name}")
        except OSError:
            continue  # the listing's own descriptor
    return found


def shared_memory() -> set[str]:
    """Names outside the tests' own directories that could come from a test.

    Other programs use /dev/shm as well.
    """
    return {name for name in os.listdir(SHARED_MEMORY) if name.startswith(SUSPECTS)}


def left_in_the_end(look: Callable[[], list[str]], patience: float) -> list[str]:
    """What `look` still finds after `patience` seconds; nothing, as soon as it finds nothing.

    What others have in the same places comes and goes, such as the semaphores of multiprocessing.
    """
    found: list[str] = []
    looks = itertools.count(1)

    def is_clean() -> bool:
        found[:] = look()
        return not found

    def is_clean_of_garbage() -> bool:
        """An object in a cycle of references is no leak. A thread may have held it until now.

        To look at all objects takes 50 ms of a core. Those of the test are young, so these are
        looked at first, and all of them at the fourth look, the eighth, and so on.
        """
        number = next(looks)
        if number < 4:
            gc.collect(1)
        elif number.bit_count() == 1:
            gc.collect()
        return is_clean()

    if is_clean():
        return []
    with contextlib.suppress(AssertionError):
        wait_until(is_clean_of_garbage, patience=patience)
    return found


@dataclass(frozen=True)
class Snapshot:
    """The state before a test.

    `mark` is an environment entry that every process of the test inherits, so that processes are
    found that have lost their parent. Stores of tests are below `stores`.

    It is taken around each of thousands of tests, so it reads no more than the names of the
    processes; what a new one is, is asked afterwards.
    """

    mark: str
    stores: Path
    spark_jvm: int | None
    pids: frozenset[int]
    descriptors: dict[int, str]
    threads: frozenset[threading.Thread]
    shared_memory: frozenset[str]

    @classmethod
    def take(cls, mark: str, stores: Path, spark_jvm: int | None = None) -> Snapshot:
        wait_until(lambda: not threads._BEGINNING, "the threads that were started run")
        return cls(
            mark,
            stores,
            spark_jvm,
            pids(),
            descriptors(),
            frozenset(threading.enumerate()),
            frozenset(shared_memory()),
        )

    def leaks(self) -> list[str]:
        """What is there now and was not there before, one line each."""
        return [
            *(describe(pid) for pid in self.left_processes()),
            *self._threads(),
            *self._descriptors(),
            *self._shared_memory(),
        ]

    def left_processes(self) -> set[int]:
        """New processes that descend from this one or carry the mark.

        Those of Spark may come and go.
        """
        return {pid for pid in pids() - self.pids if self._is_of_the_test(pid)}

    def _is_of_the_test(self, pid: int) -> bool:
        ancestor, state = parent_and_state(pid)
        is_sparks = pid == self.spark_jvm
        while ancestor not in (0, os.getpid()) and not is_sparks:
            is_sparks = ancestor == self.spark_jvm
            ancestor = parent_and_state(ancestor)[0]
        if is_sparks:
            return False
        return ancestor == os.getpid() or (state != "Z" and self._is_marked(pid))

    def _is_marked(self, pid: int) -> bool:
        try:
            entries = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False  # it is another user's, or gone
        return self.mark.encode() in entries

    def _threads(self) -> Iterator[str]:
        for thread in threading.enumerate():
            sparks = self.spark_jvm is not None and _is_py4js(thread)
            if thread not in self.threads and thread.is_alive() and not sparks:
                yield f"thread {thread.name}"

    def _descriptors(self) -> Iterator[str]:
        new = {fd: target for fd, target in descriptors().items() if self.descriptors.get(fd) != target}
        sparks = _spark_sockets() if new and self.spark_jvm is not None else set()  # to list them takes 10 ms
        for fd, target in new.items():
            if target not in sparks:
                yield f"descriptor {fd}: {target}{_ends_of(target)}"

    def _shared_memory(self) -> Iterator[str]:
        for name in shared_memory() - self.shared_memory:
            path = SHARED_MEMORY / name
            try:
                is_ours = path.lstat().st_uid == os.getuid() and not self._is_of_another_store(path)
                is_left = is_ours and not _is_in_use(path)
            except FileNotFoundError:
                continue
            if is_left:
                yield f"shared memory {path}"

    def _is_of_another_store(self, pool: Path) -> bool:
        """Whether it is the pool of a store that no test of this process has made.

        Somebody works beside the tests, and may have killed that store.
        """
        name = pool / STORE_NAME
        if name.is_fifo():
            return True  # a hunt beside the tests has put it there, and reading it would never end
        try:
            store = Path(os.fsdecode(name.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not store.is_relative_to(self.stores)


def _is_py4js(thread: threading.Thread) -> bool:
    """Whether py4j started the thread.

    It serves calls from the JVM (foreachBatch) in threads that live as long as the session.
    """
    return "py4j" in type(thread).__module__ or "py4j" in repr(getattr(thread, "_target", None))


def _spark_sockets() -> set[str]:
    """Sockets that may be PySpark's, as /proc/self/fd shows them.

    py4j keeps a TCP connection for each thread, and the server of accumulators has a socket with a
    path like `.<uuid>.sock`.
    """
    names = set()
    for table in (PROC / "net").glob("tcp*"):  # there may be no IPv6
        lines = table.read_text().splitlines()[1:]
        names |= {f"socket:[{line.split()[9]}]" for line in lines}
    for line in (PROC / "net" / "unix").read_text().splitlines()[1:]:
        if _SPARK_SOCKET.search(line):
            names.add(f"socket:[{line.split()[6]}]")
    return names


def _ends_of(target: str) -> str:
    """The kernel's line about a socket, with its addresses or its path; "" for anything else."""
    inode = target.removeprefix("socket:[").removesuffix("]")
    for name in ("tcp", "tcp6", "unix", "netlink") if inode != target else ():
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                if inode in line.split():
                    return f" ({name} {' '.join(line.split())})"
    return ""


def _is_in_use(path: Path) -> bool:
    """Whether a living process maps a file at or below `path`.

    Then it belongs to somebody who works beside the tests. A semaphore is mapped under a name that
    it had only while it was made, so the inode counts too.
    """
    status = path.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    needles = (os.fsencode(path), f" {device} {status.st_ino} ".encode())
    for pid in pids():
        try:
            maps = (PROC / str(pid) / "maps").read_bytes()
            if any(needle in maps for needle in needles):
                return True
        except OSError:
            continue
    return False


def kill(pids: set[int]) -> None:
    """Ends processes that a test left, so that later tests start clean."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue
    subprocess._cleanup()  # type: ignore[attr-defined]  # forgets those that have just been waited for
