"""Lines come once each and in order, through rotation, truncation and files that come and go."""

from __future__ import annotations

import bz2
import gzip
import lzma
import mmap
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.errors import IngestError, InputError, MessageTooLarge
from commitlog.ingest.feeding import LINE_BYTES_MAX, FileSource, Tail
from commitlog.ingest.producer_loop import Source
from tests.fake_clock import SetClock


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def said() -> list[str]:
    """What a user is told of the input."""
    return []


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def tail(log: Path, said: list[str], clock: SetClock) -> Iterator[Tail]:
    tail = Tail(str(log), follow=True, say=said.append, clock=clock)
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


def drain_to_the_error(path: Path) -> None:
    with closing(FileSource([str(path)], follow=False)) as source:
        drain(source)


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
    append(log.with_suffix(".1"), b"4\n")
    assert read(tail) == [b"44", b"5"]


def test_a_writer_that_opens_the_new_file_late(log: Path, tail: Tail, clock: SetClock) -> None:
    """It goes on in the renamed file for as long as it likes; its last half line comes, too."""
    append(log, b"1\n")
    assert read(tail) == [b"1"]
    log.rename(log.with_suffix(".1"))
    append(log, b"new\n")
    assert read(tail) == [b"new"]
    clock.pass_seconds(3600)
    append(log.with_suffix(".1"), b"2\n3")
    append(log, b"newer\n")
    assert read(tail) == [b"2", b"newer"]
    clock.pass_seconds(61)
    assert read(tail) == [b"3"]


def test_a_rotated_file_is_left_at_last(log: Path, tail: Tail, clock: SetClock) -> None:
    """After its silence, once it is removed or another one was rotated."""
    for number in range(3):
        append(log, b"%d\n" % number)
        assert read(tail) == [b"%d" % number]
        log.rename(log.with_suffix(f".{number}"))
    append(log, b"3\n")
    assert read(tail) == [b"3"]
    held = len(os.listdir("/proc/self/fd"))
    clock.pass_seconds(61)
    read(tail)
    assert len(os.listdir("/proc/self/fd")) == held - 2
    log.with_suffix(".2").unlink()
    clock.pass_seconds(61)
    read(tail)
    assert len(os.listdir("/proc/self/fd")) == held - 3


def test_a_file_that_has_its_name_again(log: Path, tail: Tail) -> None:
    """It is gone on with, and not read again."""
    append(log, b"1\n")
    assert read(tail) == [b"1"]
    log.rename(log.with_suffix(".1"))
    append(log, b"2\n")
    assert read(tail) == [b"2"]
    log.with_suffix(".1").rename(log)
    append(log, b"3\n")
    assert read(tail) == [b"3"]


def test_a_file_in_the_place_of_a_named_pipe(log: Path, tail: Tail) -> None:
    os.mkfifo(log)
    assert read(tail) == []
    log.unlink()
    append(log, b"1\n")
    assert read(tail) == [b"1"]


def test_two_rotations_while_nobody_reads(log: Path) -> None:
    """A store that is full for long does not lose the file between them."""
    append(log, b"1\n2\n")
    source = FileSource([str(log)], follow=True, clock=(clock := SetClock()))
    assert [item.value for item in source.take(1)] == [b"1", b"2"][:1]
    for number in (3, 4):
        log.rename(log.with_suffix(f".{number}"))
        append(log, b"%d\n" % number)
        clock.pass_seconds(1)
        source.tick()
    assert drain(source, times=10) == [b"1", b"2", b"3", b"4"]
    source.close()


@pytest.mark.parametrize("size", [3_000, 6_000_000], ids=["within a block", "larger than a message"])
def test_a_hole_before_a_writer_that_does_not_append(size: int, log: Path, tail: Tail, said: list[str]) -> None:
    """After copytruncate it goes on at its old place. Its lines come as they are."""
    with log.open("wb", buffering=0) as writer:
        for _ in range(60):
            writer.write(b"x" * (size // 60 - 1) + b"\n")
        assert len(read(tail, 40)) == 60
        for line in (b"after", b"again\0"):
            os.truncate(log, 0)
            writer.write(line + b"\n")
            assert read(tail) == [line]
            writer.write(b"more\n")
            assert read(tail) == [b"more"]
    assert f"{log}: {size:,} bytes from 0 on were never written; they are left out" in said
    assert any(text.startswith(f"{log} was cut or written anew after {size:,} bytes; it is read from") for text in said)


def test_a_hole_in_the_middle_and_one_at_the_end(log: Path, tail: Tail, said: list[str]) -> None:
    """The last one is only not yet written: what fills it comes. Both are said."""
    append(log, b"one\n")
    with log.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"two\n")
        file.truncate(1 << 21)
        assert read(tail) == [b"one", b"two"]
        file.write(b"three\n")
        file.flush()
        assert read(tail) == [b"three"]
        file.truncate(1 << 22)
        assert read(tail) == []
    assert said == [f"{log}: 1,048,572 bytes from 4 on were never written; they are left out"]
    with closing(FileSource([str(log)], follow=False, say=said.append)) as once:
        assert drain(once) == [b"one", b"two", b"three"]
    assert said[-1] == f"{log}: from byte 1,048,586 on it has never been written; that is not read"


def test_a_file_whose_room_was_made_ahead(log: Path, tail: Tail) -> None:
    """Its zeros are written over with lines, by one who writes and one who maps it."""
    log.write_bytes(bytes(600_000))
    assert read(tail) == []
    with log.open("r+b", buffering=0) as file:
        file.write(b"one\n")
        assert read(tail) == [b"one"]
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[4:9] = b"t\0o\nx"
            mapped.flush()
        assert read(tail) == [b"t\0o"]
        file.truncate(9)
        file.seek(9)
        file.write(b"y\n")
    assert read(tail) == [b"xy"]


def test_a_line_that_was_cut_is_given(log: Path, tail: Tail) -> None:
    """What was read of it is not lost; its end is in no file."""
    append(log, b"one\ntw")
    assert read(tail) == [b"one"]
    os.truncate(log, 0)
    append(log, b"three\n")
    assert read(tail) == [b"tw", b"three"]


def test_a_file_of_the_same_size_is_another_one(log: Path, tail: Tail) -> None:
    """Written anew in place, with as many bytes."""
    append(log, b"one\n")
    assert read(tail) == [b"one"]
    log.write_bytes(b"two\n")
    os.utime(log, (1, 1))  # the file system's clock may stand still between two writes
    assert read(tail) == [b"two"]


def test_a_directory_in_the_place_of_a_file_is_waited_for(log: Path, tail: Tail) -> None:
    """And a path that leads nowhere for a while."""
    append(log, b"one\n")
    assert read(tail) == [b"one"]
    log.unlink()
    log.mkdir()
    assert read(tail) == []
    log.rmdir()
    append(log, b"two\n")
    assert read(tail) == [b"two"]


def test_a_name_that_may_not_be_used_for_a_while(log: Path, tail: Tail, said: list[str]) -> None:
    """It is said once, and waited for."""
    append(log, b"one\n")
    assert read(tail) == [b"one"]
    log.unlink()
    log.symlink_to(log)
    assert read(tail) == []
    assert said == [f"{log}: Too many levels of symbolic links; it is waited for"]
    log.unlink()
    append(log, b"two\n")
    assert read(tail) == [b"two"]


def test_named_pipes(log: Path, tail: Tail) -> None:
    """A tailed one is read from each of its writers; another one ends with its first."""
    os.mkfifo(log)
    once = Tail(str(log.with_suffix(".once")), follow=False)
    os.mkfifo(once.path)
    assert read(tail) == read(once) == []
    for line in (b"one", b"two"):
        with log.open("wb", buffering=0) as pipe:
            pipe.write(line + b"\n")
            assert read(tail) == [line]
    with open(once.path, "wb", buffering=0) as pipe:
        pipe.write(b"1\n2")
        assert read(once) == [b"1"]
    assert read(once) == [b"2"]
    assert (tail.done, once.done) == (False, True)


def test_lines_that_are_too_long_are_passed_over_and_counted(log: Path) -> None:
    """Where it is asked for; also one that never ends."""
    log.write_bytes(b"short\n" + b"x" * (9 << 20) + b"\nnext\n" + b"y" * (5 << 20))
    source = FileSource([str(log)], follow=False, skips=True)
    assert drain(source) == [b"short", b"next"]
    assert source.skipped == 2


@pytest.mark.parametrize("opened", [gzip.open, bz2.open, lzma.open])
def test_compressed_files_are_read_once(opened: Any, log: Path) -> None:
    """Beside files that are tailed, too."""
    with opened(log, "wb") as file:
        file.write(b"".join(b"%d\n" % number for number in range(100_000)))
    other = log.with_suffix(".other")
    other.write_bytes(b"tailed\n")
    source = FileSource([str(log), str(other)], follow=True)
    found = drain(source, times=20_000)
    source.close()
    assert [line for line in found if line != b"tailed"] == [b"%d" % number for number in range(100_000)]
    assert b"tailed" in found


def test_zstd_is_read_by_arrow(log: Path) -> None:
    with pa.CompressedOutputStream(str(log), "zstd") as file:
        file.write(b"one\ntwo\n")
    assert drain(FileSource([str(log)], follow=False)) == [b"one", b"two"]
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"log: its compressed data is damaged or cut off"):
        drain_to_the_error(log)


def test_a_compressed_file_that_is_cut_off(log: Path) -> None:
    """What is whole of it comes before the error."""
    log.write_bytes(gzip.compress(random.Random(1).randbytes(300_000).hex().encode() + b"\nlast\n")[:-20])
    with pytest.raises(InputError, match=r"log: its compressed data is damaged or cut off: Compressed file ended"):
        drain_to_the_error(log)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("one\n".encode("utf-16"), "UTF-16"),
        ("one\n".encode("utf-16-le"), "UTF-16"),
        ("one\n".encode("utf-32"), "UTF-32"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x04\x22\x4d\x18rest", "lz4"),
        (b"\x7fELF\2\1\1", "a program"),
        (b"PAR1\x15\x04rest", "Parquet"),
        (b"name" + bytes(253) + b"ustar\x0000", "a tar archive"),
        (gzip.compress(b"name" + bytes(253) + b"ustar\x0000"), "a tar archive"),
        (gzip.compress(gzip.compress(b"one\n")), "gzip"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # gzip's bytes have the time in them
)
def test_what_is_no_text_is_named(data: bytes, kind: str, log: Path) -> None:
    """It is not sent as noise."""
    log.write_bytes(data)
    with pytest.raises(InputError, match=rf"log: is {kind}, no text in UTF-8; "):
        drain_to_the_error(log)


@pytest.mark.parametrize("name", ["BZhang", "PAR1,PAR2", "PK", "x" * 257 + "ustar"])
def test_text_that_begins_like_something_else_is_text(name: str, log: Path, tail: Tail) -> None:
    """Only what no text has tells of another kind of file."""
    append(log, f"{name} one\n".encode())
    assert read(tail) == [f"{name} one".encode()]


def test_a_mark_of_utf8_is_left_out_and_said(log: Path, tail: Tail, said: list[str]) -> None:
    append(log, "\ufeffone\ntwo\n".encode())
    assert read(tail) == [b"one", b"two"]
    assert said == [f"{log} begins with a byte order mark of UTF-8, which is left out"]


def test_rotation_and_removal_at_once(log: Path, tail: Tail) -> None:
    """What an unlinked file still held is read through the open descriptor."""
    append(log, b"1\n")
    assert read(tail) == [b"1"]
    append(log, b"2\n")
    log.unlink()
    append(log, b"3\n")
    assert read(tail) == [b"2", b"3"]


@pytest.mark.parametrize("again", [b"a\n", b"a longer beginning than before\nb\n"], ids=["shorter", "longer"])
def test_truncation(log: Path, tail: Tail, said: list[str], again: bytes) -> None:
    """A file that was cut and written anew is read from its start, even if it is longer now."""
    append(log, b"one\ntwo\n")
    assert read(tail) == [b"one", b"two"]
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(again)
    assert read(tail) == again.split(b"\n")[:-1]
    assert said == [
        f"{log} was cut or written anew after 8 bytes; it is read from its start; lines before the cut may have been "
        f"missed: there is no copy of it"
    ]
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
