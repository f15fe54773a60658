"""Tries as another user what root may do anyway."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.children import in_child

NOBODY = 65534


def as_nobody(action: Callable[[], object]) -> str:
    """Runs the action as another user, in a forked child.

    Returns its text, or its error with the error's class.
    """

    def act() -> object:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return action()

    return in_child(act)


may_be_another_user = as_nobody(lambda: None) == "None"
"""Not every root may: there are those of containers and of user namespaces."""
as_root = pytest.mark.skipif(not may_be_another_user, reason="only root can try as another user")
