"""Trying as another user what root may do anyway."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")


def as_nobody(action: Callable[[], object]) -> str:
    """What the action returns as text, or the error it raises, with its class, in a forked child that is another user.
    Who is not root stays who they are, and has no more rights than that."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = str(action())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    said = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return said
