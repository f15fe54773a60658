"""Machines that a test can't have: one with little memory or disk, of another name, or just booted. A forked child gets
them as namespaces of its own, where the kernel allows that: to root nearly everywhere, to others in a user namespace."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.children import in_child

CLONE_NEWTIME, CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x80, 0x20000, 0x4000000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


class NotAllowed(Exception):
    """The kernel, or what this machine runs in, refuses the namespace."""


def with_tmpfs(place: Path, size: int, action: Callable[[], None]) -> None:
    """Does it in a child in which `place`, a directory, is a tmpfs of `size` bytes. It ends with the child."""

    def act() -> None:
        _unshare(CLONE_NEWNS)
        _allowed("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)  # nobody else is to see the next one
        _allowed("mount", b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size},mode=0700".encode())
        action()

    _pass(act)


def on_a_host_called(name: str, action: Callable[[], None]) -> None:
    """Does it in a child for which the machine has this name."""

    def act() -> None:
        _unshare(CLONE_NEWUTS)
        _allowed("sethostname", name.encode(), len(name))
        action()

    _pass(act)


def just_booted(uptime_seconds: int, action: Callable[[], None]) -> None:
    """Does it in a child for which the machine was booted so many seconds ago."""

    def act() -> None:
        offsets = _offsets()
        _unshare(CLONE_NEWTIME)
        lines = []
        for name, clock in (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME)):
            up_for = int(time.clock_gettime(clock)) - offsets[name]
            lines.append(f"{name} {uptime_seconds - up_for} 0\n")
        _write("timens_offsets", "".join(lines))
        said = in_child(action)  # its children are in the namespace, not the process itself
        assert said == "None", said

    _pass(act)


def _pass(act: Callable[[], None]) -> None:
    said = in_child(act)
    if said.startswith(f"{NotAllowed.__name__}: "):
        pytest.skip(said)
    assert said == "None", said


def _offsets() -> dict[str, int]:
    """By how many whole seconds this process's clocks differ from the kernel's already."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except FileNotFoundError as error:
        raise NotAllowed("this kernel has no time namespaces") from error
    return {name: int(seconds) for name, seconds, _ in map(str.split, lines)}


def _unshare(namespace: int) -> None:
    """Leaves for a namespace of its own. It takes a user namespace, in which one is root, for who may not do so without."""
    user, group = os.geteuid(), os.getegid()
    with contextlib.suppress(NotAllowed):
        _allowed("unshare", namespace)
        return
    _allowed("unshare", CLONE_NEWUSER | namespace)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        _write(name, text)


def _write(name: str, text: str) -> None:
    """A file of this process in /proc that may be refused."""
    try:
        Path("/proc/self", name).write_text(text)
    except OSError as error:
        raise NotAllowed(f"{name}: {error}") from error


def _allowed(call: str, *arguments: object) -> None:
    """A system call that may be refused."""
    if getattr(_libc, call)(*arguments) != 0:
        code = ctypes.get_errno()
        raise NotAllowed(f"{call}: {os.strerror(code)}")
