"""Lines come once each and in order, through rotation, truncation and files that come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.errors import IngestError, MessageTooLarge
from commitlog.ingest.feeding import LINE_BYTES_MAX, FileSource, Tail
from commitlog.ingest.sending import Source


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def tail(log: Path) -> Iterator[Tail]:
    tail = Tail(str(log), follow=True)
    yield tail
    tail.close()


def drain(source: Source, at_a_time: int = 7, times: int = 1_000_000) -> list[bytes]:
    """What a source gives until it is done, or in so many turns."""
    found: list[bytes] = []
    while not source.done and times:
        times -= 1
        items = source.take(at_a_time)
        source.sent(len(items))
        found += [item.value for item in items]
    return found


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def read(tail: Tail, times: int = 4) -> list[bytes]:
    return [line for _ in range(times) for line in tail.read()]


def test_all_lines_of_all_files_in_order(tmp_path: Path) -> None:
    """Empty lines, odd bytes and a last line without an end are lines."""
    (tmp_path / "a").write_bytes(b"one\n\ntwo\xff\x00\r\nlast")
    (tmp_path / "b").write_bytes(b"".join(b"%d\n" % n for n in range(100_000)))
    (tmp_path / "empty").write_bytes(b"")
    source = FileSource([str(tmp_path / name) for name in ("a", "empty", "b")], follow=False)
    lines = drain(source)
    assert lines[:4] == [b"one", b"", b"two\xff\x00\r", b"last"]
    assert lines[4:] == [b"%d" % n for n in range(100_000)]
    assert source.done


def test_what_was_not_sent_is_given_again(tmp_path: Path) -> None:
    """A message that was refused stays the next one."""
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    source = FileSource([str(tmp_path / "a")], follow=False)
    assert [item.value for item in source.take(3)] == [b"1", b"2", b"3"]
    source.sent(1)
    assert [item.value for item in source.take(3)] == [b"2", b"3"]
    assert not source.done
    source.sent(2)
    assert source.take(3) == []
    assert source.done


def test_a_file_that_vanishes_is_an_error(tmp_path: Path) -> None:
    """When not tailing; the files before it have been read."""
    (tmp_path / "a").write_bytes(b"1\n")
    source = FileSource([str(tmp_path / "a"), str(tmp_path / "gone")], follow=False)
    assert [item.value for item in source.take(1)] == [b"1"]
    source.sent(1)
    with pytest.raises(IngestError, match="gone: No such file"):
        drain(source)


def test_a_line_longer_than_any_message(log: Path) -> None:
    """It is an error that names file and line, not a buffer without bound."""
    log.write_bytes(b"short\n" + b"x" * (LINE_BYTES_MAX + (1 << 19)))
    source = FileSource([str(log)], follow=False)
    with pytest.raises(MessageTooLarge, match=r"log: line 2 is longer"):
        drain(source)
    source.close()


def test_a_tailed_line_waits_for_its_end(log: Path, tail: Tail) -> None:
    """Half a line is not sent; the file may be missing at first."""
    assert read(tail) == []
    append(log, b"one\ntw")
    assert read(tail) == [b"one"]
    append(log, b"o\n")
    assert read(tail) == [b"two"]
    assert not tail.done


def test_rotation(log: Path, tail: Tail) -> None:
    """The renamed file is read to its end, then the new one of that name from its start."""
    append(log, b"1\n2\n")
    assert read(tail) == [b"1", b"2"]
    log.rename(log.with_suffix(".1"))
    assert read(tail) == []
    append(log.with_suffix(".1"), b"3\n4")  # its writer has not noticed yet
    assert read(tail) == [b"3"]
    append(log, b"5\n")
    assert read(tail) == [b"4", b"5"]
    assert tail.rotations == 1


def test_rotation_and_removal_at_once(log: Path, tail: Tail) -> None:
    """What an unlinked file still held is read through the open descriptor."""
    append(log, b"1\n")
    assert read(tail) == [b"1"]
    append(log, b"2\n")
    log.unlink()
    append(log, b"3\n")
    assert read(tail) == [b"2", b"3"]


@pytest.mark.parametrize("again", [b"a\n", b"a longer beginning than before\nb\n"], ids=["shorter", "longer"])
def test_truncation(log: Path, tail: Tail, again: bytes) -> None:
    """A file that was cut and written anew is read from its start, even if it is longer now."""
    append(log, b"one\ntwo\n")
    assert read(tail) == [b"one", b"two"]
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(again)
    assert read(tail) == again.split(b"\n")[:-1]
    assert tail.truncations == 1
    append(log, b"next\n")
    assert read(tail) == [b"next"]


def test_several_files_are_tailed_in_turns(tmp_path: Path) -> None:
    """A quiet file does not hold up a busy one."""
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[1].write_bytes(b"b1\n")
    source = FileSource([str(path) for path in paths], follow=True)
    lines = drain(source, times=6)
    paths[0].write_bytes(b"a1\n")
    lines += drain(source, times=6)
    source.close()
    assert lines == [b"b1", b"a1"]
    assert not source.done


def test_nothing_stays_open(log: Path) -> None:
    """A source gives its descriptors back at the end of a file and at `close`."""
    log.write_bytes(b"1\n")
    before = len(os.listdir("/proc/self/fd"))
    drain(FileSource([str(log)], follow=False))
    tail = Tail(str(log), follow=True)
    tail.read()
    tail.close()
    assert len(os.listdir("/proc/self/fd")) == before
