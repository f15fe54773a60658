"""Commands to which the system refuses a write: one line says what, why, and the way out."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from tests.command_line import run

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def refuse(code: int, *_: object) -> NoReturn:
    raise OSError(code, os.strerror(code))


def test_each_command_that_writes_names_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with one line, which does not promise that the command goes on by itself."""
    path = tmp_path / "store"
    commands: dict[str, tuple[object, ...]] = {
        "trim.json": ("trim", path, "--keep-bytes", "0", "--yes"),
        "billing": ("readers", path, "--seek", "billing", "latest"),
        "topics/sales": ("topics", path, "--create", "sales", "--schema", "id BIGINT"),
        "trimmed.json": ("topics", path, "--trim", "orders", "--before", "latest", "--yes", "--force"),
        "tokens.json": ("token", "add", tmp_path / "tokens.json", "me"),
    }
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}}) as store, store.producer() as producer:
        for _ in range(200):
            producer.send("orders", bytes(1000))
        producer.flush()
        commitlog.Reader(path, "orders", name="billing").close()
        for code in CODES:
            for file, command in commands.items():
                with monkeypatch.context() as disk:
                    disk.setattr(DISK, "write_once", partial(refuse, code))
                    done = run(*command)
                said = done.stderr.decode()
                assert done.returncode == 1, said
                assert file in said, said
                assert os.strerror(code) in said or errno.errorcode[code] in said, said
                assert "by itself" not in said, said


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files", "a file"), MemoryError(), RuntimeError("can't start new thread")],
)
def test_a_command_that_the_system_gives_nothing_more(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any look may fail so, and shows no traceback."""

    def fail(*_: object, **_more: object) -> NoReturn:
        raise error

    monkeypatch.setattr("commitlog.cli.config.files", fail)
    done = run("config", "default")
    assert done.returncode == 1
    assert b"raise the limit" in done.stderr
