"""Each allocation of the core's functions fails in turn: Python gets MemoryError, and no panic."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi, which fails allocations"
    ),
    pytest.mark.skipif(importlib.util.find_spec("commitlog.native._core") is None, reason="there is no native core"),
]

PROGRAM = """
import _testcapi
from commitlog.native import _core

bodies, keys, same = [b"x" * 300, b"y" * 400], ["k" * 300, "l"], b"same"
calls = [lambda: _core.measure(bodies), lambda: _core.keyed_properties(keys, same, 1000)]
for call in calls:
    wanted, refused, number = call(), 0, 0
    while number < 50:
        number += 1
        _testcapi.set_nomemory(number, number + 1)
        try:
            found = call()
        except BaseException as error:
            _testcapi.remove_mem_hooks()
            assert isinstance(error, MemoryError), repr(error)
            refused += 1
        else:
            _testcapi.remove_mem_hooks()
            assert found == wanted
    assert refused
print("ended")
"""


def test_each_allocation_of_a_function_fails_in_turn() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr[-3000:]
