"""The texts of errors: one line with the way out, also where Python drops docstrings."""

from __future__ import annotations

import copy
import errno
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import commitlog
from commitlog import errors
from commitlog.disk.file_channel import FileChannel
from commitlog.errors import FAULT_BY_ERRNO, disk_error

CODES = (*FAULT_BY_ERRNO, errno.EACCES, 99999)


def test_a_disk_error_names_the_errno_once_and_the_way_out() -> None:
    assert len(CODES) > 10
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


@pytest.mark.usefixtures("shm_root")
def test_the_way_out_is_right_for_a_reader_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped store has no pool: the error does not say that the data is there."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        store.producer().send("t", b"x")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "refused")

    said = r"while it was read: EIO \(the device failed, see the kernel's log; a write from the pool is repeated until"
    with commitlog.Reader(store.path) as reader, monkeypatch.context() as disk:
        disk.setattr(FileChannel, "read_file", refuse)
        disk.setattr(FileChannel, "open", refuse)
        with pytest.raises(errors.DiskInputOutput, match=said):
            next(reader)


def test_files_that_were_removed_are_put_back_whether_the_store_runs_or_not() -> None:
    said = str(disk_error(errno.ENOENT, "reading the end of lane 0"))
    assert said.endswith(
        "ENOENT (files of the store were removed (by hand, a cleaner): stop it if it runs, put them back, "
        "start it again)"
    )


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
