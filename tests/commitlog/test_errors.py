"""The texts of errors: one line with the way out, also where Python drops docstrings."""

from __future__ import annotations

import copy
import errno
import pickle
import subprocess
import sys

from commitlog import errors
from commitlog.errors import FAULT_BY_ERRNO, disk_error

CODES = (*FAULT_BY_ERRNO, errno.EACCES, 99999)


def test_a_disk_error_names_the_errno_once_and_the_way_out() -> None:
    for code in CODES:
        text = str(disk_error(code, "lane 0: writing"))
        name = errno.errorcode.get(code, str(code))
        assert text.startswith(f"lane 0: writing: {name} (")
        assert text.count(name) == 1
        assert "\n" not in text
        assert len(text) > 50


def test_a_disk_error_needs_no_docstring() -> None:
    """`python -OO` drops them."""
    program = f"from commitlog.errors import disk_error; print(*(disk_error(code, 'x') for code in {CODES}), sep='\\n')"
    said = subprocess.run([sys.executable, "-OO", "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.splitlines() == [str(disk_error(code, "x")) for code in CODES]


def test_every_error_is_the_same_in_another_process() -> None:
    """Its class, its text and its attributes; without the receipt, which asks this process."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CommitLogError)
    ]
    assert len(kinds) > 40
    made = [kind("what is wrong; the way out") for kind in kinds]
    for error in (*made, errors.CorruptRecord("its CRC does not match", 5, "/lanes/0/segment")):
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(other), str(other)) == (type(error), str(error))
            assert vars(other) == {**vars(error), "receipt": None}
