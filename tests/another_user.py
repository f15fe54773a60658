"""Trying as another user what root may do anyway."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.children import in_child

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")


def as_nobody(action: Callable[[], object]) -> str:
    """What the action returns as text, or the error it raises, with its class, in a forked child that is another user.
    Who is not root stays who they are, and has no more rights than that."""

    def act() -> object:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return action()

    return in_child(act)
