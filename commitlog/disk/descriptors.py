"""The descriptors of a user's process: how many are left, and which numbers we must not use."""

from __future__ import annotations

import io
import os
import resource
from itertools import repeat

from commitlog.errors import NotEnoughDescriptors


def occupy_standard_descriptors() -> None:
    """Opens /dev/null as each of the descriptors 0, 1 and 2 that is closed, as git does.

    Otherwise a pipe, a socket or a mapping of ours would get that number, and a `print` of the
    program would go there. They stay open, because ZeroMQ may make a descriptor at any time. Raises
    OSError.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def point_nowhere(*descriptors: int) -> None:
    """Makes each of the descriptors one of /dev/null. Raises OSError."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        os.dup2(nowhere, number, inheritable=False)
    os.close(nowhere)


def are_free(count: int) -> bool:
    """Whether `count` descriptors can be had now.

    It tries, because the whole machine may have run out of them.
    """
    taken: list[io.FileIO] = []
    try:
        taken.extend(map(io.FileIO, map(os.eventfd, repeat(0, count))))  # one call: each has an owner at any moment
        return True
    except OSError:  # any reason counts (ENOMEM, too): ringing a bell must not raise
        return False
    finally:
        for file in taken:
            file.close()


def check_free(count: int, doing: str) -> None:
    """Raises NotEnoughDescriptors where `count` descriptors can't be had.

    `doing` says what takes them; it is a part of the error's text.
    """
    if not are_free(count):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise NotEnoughDescriptors(
            f"{doing} takes up to {count} file descriptors, and this process, which may have {limit}, can't get so many: "
            f"close files or raise the limit (ulimit -n)"
        )
