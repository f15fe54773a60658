"""Several rotations come between two looks at a tailed file: what is between is read, or named."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.ingest.feeding import Tail
from tests.fake_clock import SetClock


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def said() -> list[str]:
    """What a user is told of the input."""
    return []


@pytest.fixture
def tail(log: Path, said: list[str]) -> Iterator[Tail]:
    """It has read the lines `0` and then looks no more, for now."""
    (log.parent / "app.log.9").write_bytes(b"from before\n")
    log.write_bytes(b"0\n")
    tail = Tail(str(log), follow=True, say=said.append, clock=SetClock())
    assert read(tail) == [b"0"]
    yield tail
    tail.close()


def read(tail: Tail, times: int = 6) -> list[bytes]:
    return [line for _ in range(times) for line in tail.read()]


def rotate(log: Path, count: int, keep: int = 8, begin: int = 1) -> None:
    """Numbers go up, as logrotate does it; each new file has one line."""
    for number in range(begin, begin + count):
        for old in range(keep, 0, -1):
            file = log.with_name(f"{log.name}.{old}")
            if file.exists() and old == keep:
                file.unlink()
            elif file.exists():
                file.rename(log.with_name(f"{log.name}.{old + 1}"))
        log.rename(log.with_name(f"{log.name}.1"))
        log.write_bytes(b"%d\n" % number)


def test_numbered_files(log: Path, tail: Tail, said: list[str]) -> None:
    """Each line comes once and in order; what was there before the start does not come."""
    rotate(log, 3)
    assert read(tail) == [b"1", b"2", b"3"]
    rotate(log, 2, begin=4)
    assert read(tail) == [b"4", b"5"]
    assert said == []


def test_dated_files(log: Path, tail: Tail, said: list[str]) -> None:
    """Their order is that of their last change; both usual places of a date are found."""
    for number, name in enumerate(["app.log-20251126", "app-2025-11-27.log", "app.log.2025-11-28T10"], 1):
        log.rename(log.with_name(name))
        log.write_bytes(b"%d\n" % number)
    assert read(tail) == [b"1", b"2", b"3"]
    assert said == []


def test_files_that_are_gone_already(log: Path, tail: Tail, said: list[str]) -> None:
    """Too few are kept for so many rotations: it is said."""
    rotate(log, 4, keep=2)
    assert read(tail)[-1] == b"4"
    (line,) = said
    assert "app.log" in line
    assert "may have been missed" in line


def test_a_file_that_was_compressed(log: Path, tail: Tail, said: list[str]) -> None:
    """Nobody knows whether it has what was read: it is named, and not read."""
    rotate(log, 2)
    middle = log.with_name("app.log.1")
    middle.with_name("app.log.1.gz").write_bytes(gzip.compress(middle.read_bytes()))
    middle.unlink()
    assert read(tail) == [b"2"]
    assert "app.log.1.gz" in " ".join(said)


def test_what_is_no_rotated_file(log: Path, tail: Tail, said: list[str]) -> None:
    """A copy of what was read does not come again, nor does another program's file."""
    log.with_name("app.log.20251126").write_bytes(log.read_bytes())
    log.with_name("app-errors.log").write_bytes(b"another's\n")
    log.with_name("app.log.bak").write_bytes(b"somebody's\n")
    rotate(log, 1)
    assert read(tail) == [b"1"]
    assert "app.log.20251126" in " ".join(said)


def cut(log: Path, lines: bytes, copy: str = "1") -> None:
    """What is written after the last look is copied, and cut away, as copytruncate does."""
    with log.open("ab") as file:
        file.write(lines)
    data = log.read_bytes()
    log.with_name(f"{log.name}.{copy}").write_bytes(gzip.compress(data) if copy.endswith(".gz") else data)
    with log.open("r+b") as file:
        file.truncate(0)


def test_what_a_cut_took_is_read_from_the_copy(log: Path, tail: Tail, said: list[str]) -> None:
    """Lines, and the beginning of a line, that nobody had read; they come before the next ones."""
    for number in range(2):
        cut(log, b"before %d\nhalf" % number)
        log.write_bytes(b"after %d\n" % number)
        assert read(tail) == [b"before %d" % number, b"half", b"after %d" % number]
    assert [text.partition("its start; ")[2] for text in said] == [
        f"before that the {size} bytes more that its copy {log}.1 has" for size in (13, 13)
    ]


def test_a_cut_that_took_nothing_is_said_without_a_loss(log: Path, tail: Tail, said: list[str]) -> None:
    """The copy has what was read, and no more."""
    cut(log, b"")
    log.write_bytes(b"1\n")
    assert read(tail) == [b"1"]
    assert said == [f"{log} was cut or written anew after 2 bytes; it is read from its start"]


def test_what_a_cut_took_is_said_where_its_copy_can_not_be_read(log: Path, tail: Tail, said: list[str]) -> None:
    """The copy is compressed; or it was cut twice, and only one copy goes on where we were."""
    cut(log, b"lost\n", "1.gz")
    log.write_bytes(b"1\n")
    assert read(tail) == [b"1"]
    cut(log, b"2\n", "3")
    log.write_bytes(b"lost, too\n")
    cut(log, b"", "2")
    log.write_bytes(b"4\n")
    assert read(tail) == [b"2", b"4"]
    assert f"lines before the cut may have been missed: {log}.1.gz is new and compressed; it is not read" in said[0]
    assert f"lines may have been missed: {log}.2 is new and begins otherwise; it is not read" in said[1]
