"""The texts of errors: one line with the way out, also where Python drops docstrings."""

from __future__ import annotations

import errno
import subprocess
import sys

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
