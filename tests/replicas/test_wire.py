"""What comes over the wire is bounded: bad frames end a connection by name, and write nothing."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from commitlog.config_file import load_config
from commitlog.disk.epochs import OFFSET_MAX, Epoch
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.replica_mark import ReplicaMark
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import (
    CommitLogError,
    ConfigError,
    DiskError,
    IllegalArgument,
    ReplicaRefused,
    ReplicationRefused,
)
from commitlog.replicas import wire
from commitlog.replicas.incoming import Incoming
from commitlog.replicas.lane_copy import LaneCopy
from commitlog.replicas.wire import HEAD, NO_LANE, Acknowledgements, Frame, Hello, Kind, LaneTail, Welcome
from commitlog.shm.layout import LANE_ROWS
from commitlog.text.quantities import address_of
from tests.builders.hand_made import HandMadeStore

STORE = "0" * 32
OFFSETS = some.integers(0, OFFSET_MAX - 1)
LANES = some.integers(0, LANE_ROWS - 1)
TAILS = some.builds(
    lambda lane, begin, size, crc: LaneTail(lane, begin, begin + size, crc),
    LANES, some.integers(0, OFFSET_MAX >> 1), some.integers(0, wire.TAIL_BYTES), some.integers(0, (1 << 32) - 1),
)  # fmt: skip


def body_of(greeting: bytes) -> bytes:
    return wire.read_greeting(io.BytesIO(greeting).readinto)


@given(some.lists(TAILS, max_size=8, unique_by=lambda tail: tail.lane), some.integers(0, 1 << 40), some.booleans())
def test_a_hello_comes_back_as_it_was(tails: list[LaneTail], epoch: int, follows: bool) -> None:
    hello = Hello("copy", STORE, epoch, follows, tuple(tails))
    assert Hello.from_bytes(body_of(hello.to_bytes())) == hello


@given(some.dictionaries(LANES, OFFSETS, max_size=5), some.integers(0, 100))
def test_a_welcome_comes_back_as_it_was(ends: dict[int, int], epoch: int) -> None:
    lanes = {lane: (0, end) for lane, end in ends.items()}
    epochs = (Epoch(epoch, ends),)
    welcome = Welcome(STORE, epoch, 1 << 16, 1, 100, 1000, {"store": {}}, epochs, lanes)
    assert Welcome.from_bytes(body_of(welcome.to_bytes())) == welcome


@given(
    some.binary(max_size=200)
    | some.text().map(str.encode)
    | some.sampled_from([b"{}", b"[]", b"null", b'{"protocol":1}'])
)
def test_garbage_is_no_greeting(data: bytes) -> None:
    for kind in (Hello, Welcome):
        with pytest.raises(ReplicationRefused):
            kind.from_bytes(data)


@pytest.mark.parametrize("kind", [b'"KeyboardInterrupt"', b"[]", b"{}", b"null"])
def test_a_refusal_of_an_unknown_kind_is_a_refusal(kind: bytes) -> None:
    with pytest.raises(ReplicationRefused, match="because"):
        Welcome.from_bytes(b'{"error": %s, "message": "because"}' % kind)


@given(some.integers(wire.GREETING_BYTES_MAX + 1, (1 << 32) - 1))
def test_a_long_greeting_is_refused_before_it_is_read(length: int) -> None:
    with pytest.raises(ReplicationRefused, match="allowed are"):
        body_of(wire.LENGTH.pack(length))


@given(
    some.integers(0, 0xFFFF), some.integers(0, 0xFFFF), some.integers(-(1 << 63), (1 << 63) - 1),
    some.integers(-(1 << 31), (1 << 31) - 1), some.binary(max_size=64),
)  # fmt: skip
def test_any_frame_is_read_or_refused_by_name(kind: int, lane: int, offset: int, size: int, body: bytes) -> None:
    """It is never longer than 4 MiB, and a truncated one ends with the connection."""
    stream = io.BytesIO(HEAD.pack(kind, lane, offset, size) + body)
    try:
        frame = wire.FrameReader(stream.readinto).read()
    except (CommitLogError, EOFError):
        return
    assert frame.kind == kind
    assert len(frame.body) == size <= wire.BODY_BYTES_MAX
    assert frame.offset == offset >= 0
    assert frame.lane == lane
    assert lane < LANE_ROWS or lane == NO_LANE


@given(some.lists(some.tuples(LANES, OFFSETS), max_size=20), some.integers(1, 30))
def test_acknowledgements_come_in_any_pieces(pairs: list[tuple[int, int]], step: int) -> None:
    data, heard, found = b"".join(wire.ACKNOWLEDGEMENT.pack(*pair) for pair in pairs), Acknowledgements(), []
    for at in range(0, len(data), step):
        found += heard.feed(data[at : at + step])
    assert found == pairs


@given(some.integers(LANE_ROWS, 0xFFFE), OFFSETS)
def test_an_acknowledgement_of_no_lane_is_refused(lane: int, offset: int) -> None:
    with pytest.raises(ReplicationRefused):
        Acknowledgements().feed(wire.ACKNOWLEDGEMENT.pack(lane, offset))


@pytest.mark.parametrize(
    "name",
    [
        "store.json",
        "../x",
        "topics/../store.json",
        "topics/./1.json",
        "readers/../a.json",
        "lanes/0/positions",
        "readers/.json",
    ],
)
def test_a_file_that_no_copy_has_is_refused(name: str) -> None:
    with pytest.raises(ReplicationRefused, match="no file that a copy"):
        wire.check_file_name(name)


# ---- what a copy does with them ----------------------------------------------------------------


@pytest.fixture
def incoming(tmp_path: Path) -> Iterator[Incoming]:
    directory = StoreDirectory(tmp_path / "copy")
    directory.path.mkdir()
    facts = StoreFacts(STORE, 1 << 16)
    directory.save(facts)
    lanes: dict[int, LaneCopy] = {}
    with ThreadPoolExecutor(1) as beside:
        made = Incoming(directory, facts, lanes, threading.Lock(), ReplicaMark("here:1", "copy"), beside, {})
        made.take(Frame(Kind.FIRST, 0, 0, b""))
        yield made
    for lane in lanes.values():
        lane.close()


def log_of(tmp_path: Path, count: int = 100, lane: int = 0) -> bytes:
    """Bytes of a real log: a segment and a bit."""
    store = HandMadeStore(tmp_path / "made")
    for number in range(count):
        store.lane(lane).append("t", b"%04d" % number * 200)
    store.publish()
    return b"".join(file.read_bytes() for file in sorted((tmp_path / f"made/lanes/{lane}/commitlog").iterdir()))


def written(tmp_path: Path, lane: int = 0) -> bytes:
    files = sorted((tmp_path / f"copy/lanes/{lane}/commitlog").glob("*"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


@pytest.mark.parametrize("body", [b"garbage" * 100, bytes(100), b"\xff" * 4096])
def test_data_that_are_no_records_are_not_written(incoming: Incoming, tmp_path: Path, body: bytes) -> None:
    with pytest.raises(ReplicaRefused, match="as the store sends it"):
        incoming.take(Frame(Kind.DATA, 0, 0, body))
    assert written(tmp_path) == b""


def test_data_that_do_not_follow_on_are_refused(incoming: Incoming, tmp_path: Path) -> None:
    with pytest.raises(ReplicationRefused, match="the copy ends at 0"):
        incoming.take(Frame(Kind.DATA, 0, 100, b"x"))
    with pytest.raises(ReplicationRefused, match="before it was said"):
        incoming.take(Frame(Kind.DATA, 1, 0, b"x"))
    assert written(tmp_path) == b""


def test_a_frame_over_the_end_of_a_segment_is_refused(incoming: Incoming, tmp_path: Path) -> None:
    with pytest.raises(ReplicationRefused, match="over its segment's end"):
        incoming.take(Frame(Kind.DATA, 0, 0, bytes((1 << 16) + 1)))
    assert written(tmp_path) == b""


def test_a_damaged_record_is_not_written_and_those_before_it_may_be_sent_again(
    incoming: Incoming, tmp_path: Path
) -> None:
    data = bytearray(log_of(tmp_path, 20)[: 1 << 14])
    data[5000] ^= 1
    with pytest.raises(ReplicaRefused, match="as the store sends it"):
        incoming.take(Frame(Kind.DATA, 0, 0, bytes(data)))
    assert written(tmp_path) == b""


@pytest.mark.parametrize("beside", [False, True])
def test_records_in_any_pieces_are_written_whole(beside: bool, incoming: Incoming, tmp_path: Path) -> None:
    data, said = log_of(tmp_path, 20).rstrip(b"\0"), b""
    for at in range(0, len(data), 777):
        incoming.take(Frame(Kind.DATA, 0, at, data[at : at + 777]))
        said += incoming.sync(beside=beside)
    said += incoming.sync()
    assert list(wire.ACKNOWLEDGEMENT.iter_unpack(said))[-1] == (0, len(data))
    assert written(tmp_path) == data


def test_a_sync_that_fails_beside_is_an_error_at_the_end_too(
    incoming: Incoming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may end before the next frame comes, and a second sync would succeed."""

    def fail(channel: FileChannel, fd: int) -> None:
        raise OSError(errno.EIO, "made")

    incoming.take(Frame(Kind.DATA, 0, 0, log_of(tmp_path, 5).rstrip(b"\0")))
    monkeypatch.setattr(FileChannel, "fdatasync", fail)
    incoming.sync(beside=True)
    with pytest.raises(DiskError, match="syncing the store's log"):
        incoming.end_sync()


def test_damage_that_the_store_has_noted_is_taken_as_it_is(incoming: Incoming, tmp_path: Path) -> None:
    """Also in a lane that is new here: a store sends its notes before the lane."""
    data = bytearray(log_of(tmp_path, 20, lane=1).rstrip(b"\0"))
    data[100] ^= 1
    note = b'{"file": "made", "offset": 0, "bytes": %d, "reason": "made"}' % int.from_bytes(data[:4], "big")
    (frame,) = wire.file_frames(f"lanes/1/quarantine/corrupt-{0:020d}.json", note)
    incoming.take(wire.FrameReader(io.BytesIO(frame).readinto).read())
    incoming.take(Frame(Kind.FIRST, 1, 0, b""))
    incoming.take(Frame(Kind.DATA, 1, 0, bytes(data)))
    assert written(tmp_path, lane=1) == data


@pytest.mark.parametrize("address", ["a..b:4440", f"{'a' * 64}:4440", ":4440", "db2", "db2:70000", "db2:x"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(IllegalArgument, match="is no address; give HOST:PORT"):
        address_of(address)
    with pytest.raises(ConfigError, match=r"replication\.peers .*allowed are HOST:PORT"):
        load_config({"replication": {"peers": f"db1:4440 {address}"}})
