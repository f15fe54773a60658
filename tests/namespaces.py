"""Machines that a test can't have: with little memory or disk, of another name, or just booted.

A forked child gets them as its own namespaces, where the kernel allows that: root nearly
everywhere, other users in a user namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.children import in_child

CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x80, 0x20000, 0x4000000, 0x10000000
MS_RDONLY, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x8, 0x20, 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


class NotAllowed(Exception):
    """The kernel, or the container, refuses the namespace."""


def with_tmpfs(place: Path, size: int, action: Callable[[], None]) -> None:
    """Runs the action in a child where the directory `place` is a tmpfs of `size` bytes.

    The tmpfs ends with the child.
    """

    def act() -> None:
        _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size},mode=0700".encode())
        action()

    _with_own_mounts(act)


def read_only(place: Path, action: Callable[[], None]) -> None:
    """Runs the action in a child where nothing below `place` can be written."""
    _mounted(place, MS_RDONLY, action)


def without_programs(place: Path, action: Callable[[], None]) -> None:
    """Runs the action in a child where no program below `place` can be started."""
    _mounted(place, MS_NOEXEC, action)


def _mounted(place: Path, how: int, action: Callable[[], None]) -> None:
    def act() -> None:
        name = os.fsencode(place)
        _call("mount", name, name, None, MS_BIND, None)
        _call("mount", None, name, None, MS_REMOUNT | MS_BIND | how, None)
        action()

    _with_own_mounts(act)


def started_again(directory: Path, action: Callable[[], None]) -> None:
    """Runs the action in a child where the machine was started again, as its boot id says."""
    boot_id = directory / "boot_id"
    boot_id.write_text("00000000-0000-4000-8000-000000000000\n")

    def act() -> None:
        _call("mount", os.fsencode(boot_id), b"/proc/sys/kernel/random/boot_id", None, MS_BIND, None)
        action()

    _with_own_mounts(act)


def _with_own_mounts(action: Callable[[], None]) -> None:
    def act(as_root: bool) -> None:
        _unshare(CLONE_NEWNS, as_root)
        _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)  # so that nobody else sees the next mount
        action()

    _try(act)


def on_a_host_called(name: str, action: Callable[[], None]) -> None:
    """Runs the action in a child where the machine has this name, which no resolver knows."""

    def act(as_root: bool) -> None:
        _unshare(CLONE_NEWUTS, as_root)
        _call("sethostname", name.encode(), len(name))
        if _is_known(name):
            raise NotAllowed(f"this machine knows itself by any name, also by {name}")
        action()

    _try(act)


def _is_known(name: str) -> bool:
    try:
        socket.gethostbyname(name)
    except OSError:
        return False
    return True


def just_booted(uptime_seconds: int, action: Callable[[], None]) -> None:
    """Runs the action in a child where the machine was booted that many seconds ago."""

    def act(as_root: bool) -> None:
        offsets = _offsets()
        _unshare(CLONE_NEWTIME, as_root)
        lines = []
        for name, clock in (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME)):
            up_for = int(time.clock_gettime(clock)) - offsets[name]
            lines.append(f"{name} {uptime_seconds - up_for} 0\n")
        _write("timens_offsets", "".join(lines))
        said = in_child(action)  # only its children are in the namespace
        assert said == "None", said

    _try(act)


def _try(act: Callable[[bool], None]) -> None:
    """Runs the action in a child with its own rights, else as root of a user namespace.

    Skips the test where neither is allowed.
    """
    said = ""
    for as_root in (False, True):
        said = in_child(partial(act, as_root))
        if not said.startswith(f"{NotAllowed.__name__}: "):
            break
    else:
        pytest.skip(said)
    assert said == "None", said


def _offsets() -> dict[str, int]:
    """The whole seconds by which this process's clocks already differ from the kernel's."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except FileNotFoundError as error:
        raise NotAllowed("this kernel has no time namespaces") from error
    return {name: int(seconds) for name, seconds, _ in map(str.split, lines)}


def _unshare(namespace: int, as_root: bool) -> None:
    """Moves this process into new namespaces.

    With `as_root` also into a user namespace in which it is root.
    """
    if not as_root:
        _call("unshare", namespace)
        return
    user, group = os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWUSER | namespace)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        _write(name, text)


def _write(name: str, text: str) -> None:
    """Writes a file of this process in /proc; the kernel may refuse that."""
    try:
        Path("/proc/self", name).write_text(text)
    except OSError as error:
        raise NotAllowed(f"{name}: {error}") from error


def _call(call: str, *arguments: object) -> None:
    """Makes a system call that may be refused."""
    if getattr(_libc, call)(*arguments) != 0:
        raise NotAllowed(f"{call}: {os.strerror(ctypes.get_errno())}")
