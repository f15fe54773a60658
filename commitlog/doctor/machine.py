"""Checks of the machine: kernel, shared memory, limits of processes, clock."""

from __future__ import annotations

import os
import platform
import resource
import stat
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from commitlog.config import AUTO_SEGMENT_BYTES_MAX, MIN_SEGMENT_BYTES
from commitlog.disk.descriptors import are_free
from commitlog.doctor.finding import Code, Finding, Surroundings, good, note, problem
from commitlog.doctor.mounts import mount_of
from commitlog.doctor.store_settings import facts_of, settings_of
from commitlog.errors import NativeCoreMissing, NotEnoughSharedMemory
from commitlog.opening.pool_sizing import choose_segment_bytes
from commitlog.opening.stray_pools import stray_pools
from commitlog.shm.memory_lock import lock_limit
from commitlog.shm.memory_order import KEEPS_ORDER, check_order
from commitlog.shm.region import base_directory
from commitlog.shm.write_buffers import free_bytes
from commitlog.text.lines import for_shell, to_enlarge

_DESCRIPTORS = 36
"""What a store (12) and a producer (24) take in one process."""
_DESCRIPTORS_ENOUGH = 1_024
"""A flusher has one for each unflushed segment, a dispatcher one for each consume queue."""
_PROCESSES = 64
"""A store has five processes with some threads; Spark has dozens of threads."""
_LANES = 4
_SLOW_CLOCKS = ("acpi_pm", "hpet", "jiffies", "refined-jiffies")
_MAY_LOCK, _MAY_EXCEED = 14, 24  # CAP_IPC_LOCK, CAP_SYS_RESOURCE


def kernel(_here: Surroundings) -> Iterator[Finding]:
    """Which kernel runs, on which processor."""
    text = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() != "Linux":
        yield problem(Code.KERNEL, f"{text}: the package runs on Linux only", "use such a machine")
        return
    try:
        if not KEEPS_ORDER:
            import_module("commitlog.native")  # it says who keeps the order here
        check_order()
        yield good(Code.KERNEL, text)
    except NativeCoreMissing as error:
        yield problem(Code.KERNEL, f"{text}: {error}", "use x86-64, or build the native core (docs/native.md)")


# ---- shared memory -----------------------------------------------------------------------------


def shared_memory(here: Surroundings) -> Iterator[Finding]:
    """The directory for pools, and how many lanes fit into it."""
    base = base_directory()
    elsewhere = "set COMMITLOG_SHM_DIR to a directory of a tmpfs that is yours"
    if not base.is_dir():
        remedy = f"`mount -t tmpfs tmpfs {base}`, or {elsewhere}"
        yield problem(Code.SHARED_MEMORY, f"{base}, where stores have their shared memory, is not there", remedy)
        return
    mount, mode = mount_of(base, here), base.stat().st_mode
    if not os.access(base, os.W_OK | os.X_OK):
        text = f"{base} has mode {stat.S_IMODE(mode):o}, so this user can make nothing in it"
        yield problem(Code.SHARED_MEMORY, text, f"`chmod 1777 {base}` as root, or {elsewhere}")
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = f"{base} has mode {stat.S_IMODE(mode):o}: every user may remove another one's shared memory"
        yield problem(Code.SHARED_MEMORY, text, f"`chmod +t {base}` as root, or {elsewhere}")
    if mount and mount.kind not in ("tmpfs", "ramfs"):
        text = f"{base} is on {mount.kind} and not on tmpfs, so what is in shared memory goes to a disk"
        yield note(Code.SHARED_MEMORY, text, elsewhere)
    facts = os.statvfs(base)
    size, free = facts.f_blocks * facts.f_frsize, free_bytes(base)
    kind = mount.kind if mount else "a file system"
    yield good(Code.SHARED_MEMORY, f"{base} is {kind} of {_mib(size)} MiB, {_mib(free)} MiB are free")
    yield from _lanes(here, base, free)


def _lanes(here: Surroundings, base: Path, free: int) -> Iterator[Finding]:
    largest, buffers, facts = AUTO_SEGMENT_BYTES_MAX, settings_of(here).store.buffers_per_lane, facts_of(here)
    what = "of this store" if facts else "of a new store"
    if facts:
        segment_bytes = facts.segment_bytes
    else:
        try:
            segment_bytes = choose_segment_bytes(buffers, largest, MIN_SEGMENT_BYTES)
        except NotEnoughSharedMemory as error:
            yield problem(Code.LANES, str(error), to_enlarge(base, MIN_SEGMENT_BYTES * buffers))
            return
        if segment_bytes < largest:
            text = f"a new store gets segments of {_kib(segment_bytes)} KiB, because {base} has little room"
            yield note(Code.LANES, text, f"small segments are slower; {to_enlarge(base)}")
    fit = free // (segment_bytes * buffers)
    text = f"{fit:,} more lanes {what} fit into shared memory, with segments of {_kib(segment_bytes)} KiB"
    if not fit:
        yield problem(Code.LANES, text, f"close producers, or {to_enlarge(base)}")
    elif fit < _LANES:
        yield note(Code.LANES, text, f"a producer takes a lane; for more of them {to_enlarge(base)}")
    else:
        yield good(Code.LANES, text)


def strays(here: Surroundings) -> Iterator[Finding]:
    """Shared memory of stores that are gone."""
    for pool in stray_pools(here.clock):
        gone = "has another pool" if pool.is_replaced else "is gone"
        text = f"{pool.directory} takes {pool.size:,} bytes of shared memory, and its store {pool.store} {gone}"
        remove = f"`rm -r {pool.directory}`" if pool.is_replaced else f"`commitlog destroy {for_shell(pool.store)}`"
        if pool.unflushed:
            text += f"; {pool.unflushed:,} bytes in it were accepted and never written to disk"
            yield problem(Code.STRAY_POOL, text, f"start the store at its new place if it was moved, else {remove}")
        else:
            yield note(Code.STRAY_POOL, text, f"{remove} removes it")


# ---- limits ------------------------------------------------------------------------------------


def limits(here: Surroundings) -> Iterator[Finding]:
    """What the system lets this user's processes have."""
    yield from _locked_memory(here)
    yield from _descriptors()
    yield from _processes(here)


def _locked_memory(here: Surroundings) -> Iterator[Finding]:
    limit = lock_limit()
    facts, settings = facts_of(here), settings_of(here).store
    lane = (facts.segment_bytes if facts else AUTO_SEGMENT_BYTES_MAX) * settings.buffers_per_lane
    if not settings.lock_memory:
        yield good(Code.LOCKED_MEMORY, "the store does not lock its memory (store.lock_memory)")
    elif limit == resource.RLIM_INFINITY or _may(here, _MAY_LOCK):
        yield good(Code.LOCKED_MEMORY, "write buffers may be locked into memory")
    elif limit < lane:
        yield note(
            Code.LOCKED_MEMORY,
            f"{limit:,} bytes may be locked into memory (RLIMIT_MEMLOCK) and a lane has {lane:,}, so its buffers may be "
            f"swapped out",
            "`ulimit -l unlimited`, LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for a container; or set "
            "store.lock_memory = false",
        )
    else:
        yield good(Code.LOCKED_MEMORY, f"the write buffers of {limit // lane:,} lanes may be locked into memory")


def _descriptors() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may have {_number(soft)} file descriptors, and {_number(hard)} if it asks (RLIMIT_NOFILE)"
    remedy = "`ulimit -n 65536`, LimitNOFILE= in a systemd unit"
    if not are_free(_DESCRIPTORS):
        yield problem(Code.DESCRIPTORS, f"{text}; a store and a producer take {_DESCRIPTORS}", remedy)
    elif hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_ENOUGH:
        text += "; stages take one for each unflushed segment and each topic of a lane"
        yield note(Code.DESCRIPTORS, text, remedy)
    else:
        yield good(Code.DESCRIPTORS, text)


def _processes(here: Surroundings) -> Iterator[Finding]:
    left = []
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and not _may(here, _MAY_EXCEED):
        left.append(limit - _threads_of_user())
    group = here.text_of("/proc/self/cgroup").rpartition("0::")[2].strip()
    most = here.text_of(f"/sys/fs/cgroup{group}/pids.max")
    if most.isdecimal():
        left.append(int(most) - int(here.text_of(f"/sys/fs/cgroup{group}/pids.current") or 0))
    if left and min(left) < _PROCESSES:
        text = (
            f"{max(min(left), 0):,} more processes and threads may be started; a store and a Spark session take about "
        )
        remedy = "`ulimit -u`, TasksMax= in a systemd unit, --pids-limit for a container; or end other programs"
        yield problem(Code.PROCESSES, f"{text}{_PROCESSES}", remedy)
    else:
        yield good(Code.PROCESSES, "processes and threads may be started")


def _threads_of_user() -> int:
    """All threads of this user, which RLIMIT_NPROC counts."""
    count = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has just ended
    return count


def _may(here: Surroundings, capability: int) -> bool:
    """Whether this process has a capability of Linux, by its number."""
    _, _, rest = here.text_of("/proc/self/status").partition("CapEff:")
    return bool(rest) and bool(int(rest.split()[0], 16) >> capability & 1)


# ---- clock -------------------------------------------------------------------------------------


def clock_source(here: Surroundings) -> Iterator[Finding]:
    """What the kernel takes the time from: each message asks for it."""
    source = here.text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_CLOCKS:
        yield note(
            Code.CLOCK_SOURCE,
            f"the kernel's clock source is {source}: to ask for the time takes about a microsecond, for each message",
            "tsc is quick, where the machine has a steady one (kernel parameter tsc=reliable); in a virtual machine its own",
        )
    elif source:
        yield good(Code.CLOCK_SOURCE, f"the kernel's clock source is {source}")


def _mib(size: int) -> str:
    return f"{size >> 20:,}"


def _kib(size: int) -> str:
    return f"{size >> 10:,}"


def _number(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else f"{limit:,}"
