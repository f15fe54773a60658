"""What a store and its replicas say to each other, and the bounds of all of it.

Both begin with a greeting: u32 length, then JSON. The replica says which log it has (`Hello`). The
store answers with what it has (`Welcome`), or refuses by name (`refusal`). Then there are frames:

    store → replica    u16 kind │ u16 lane │ i64 offset │ i32 size │ body
    replica → store    u32 lane │ i64 offset                      has the lane's log durably;
                                                                  of NO_LANE: a heartbeat

Behind kind and lane a frame is RocketMQ's. All numbers are big-endian. A DATA frame never crosses
the end of a segment. It may end within a record; a replica counts whole records only.

Either side may be hostile or mistaken, so each number has a bound, and a frame that breaks one ends
the connection with a ReplicationRefused.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from commitlog.disk.epochs import OFFSET_MAX, Epoch, epochs_from_json, number_below
from commitlog.disk.replica_files import is_replica_name
from commitlog.errors import CommitLogError, ReplicaRefused, ReplicationRefused, StoreSuperseded
from commitlog.shm.layout import LANE_ROWS

PROTOCOL = 1
GREETING_BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 4 << 20
FILE_BYTES_MAX = 64 << 20
TAIL_BYTES = 1 << 16
"""How much of the end of each lane a replica has to have in common with the store, at most."""
NO_LANE = 0xFFFF
"""The lane of what belongs to none: some frames, and the heartbeats of replicas."""
WANTED_MOST = 1_000
"""How many lost segments of a lane a replica asks for at once."""
IS_COMPLETE = 1
"""The offset of a heartbeat that says: what COMPLETE stands for is on the disk here."""

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">HHqi")
ACKNOWLEDGEMENT = struct.Struct(">Iq")
_END = struct.Struct(">Iq")
_NAME_LENGTH = struct.Struct(">HI")
_STORE_ID = re.compile("[0-9a-f]{32}")
_TOPIC = r"(?!\.\.?/)[%|A-Za-z0-9_.-]{1,255}"
_FILE_NAME = re.compile(
    rf"topics/{_TOPIC}/(?:[1-9][0-9]{{0,8}}\.json|deleted)"
    r"|readers/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.json"
    r"|lanes/(?:0|[1-9][0-9]{0,2})/(?:trimmed\.json|quarantine/corrupt-[0-9]{20}\.json)"
)


class Kind(enum.IntEnum):
    """What a frame is. `offset` is 0 where nothing else is said.

    - DATA: bytes of a lane's log from `offset` on
    - HEARTBEAT: how far each lane may be sent (`ends_to_bytes`)
    - FIRST: retention keeps the lane from `offset` on. It comes before the first data of a lane
    - QUEUES: JSON, topic → queue offset of its first record at or behind the first of the lane
    - FILE: a part of a small file from byte `offset` on (`file_part`)
    - GONE: the name of a small file that was removed
    - COMPLETE: all small files, and the log that they need, were sent. Whatever else the replica
      has of small files is gone
    - REFUSAL: the store ends the connection, and why (`refusal`)
    - SEGMENT: bytes of a segment that the replica has asked for, from `offset` on

    A replica that asks for segments gets those that the store has, and FIRST for their lanes before
    that. COMPLETE says then that there are no more.
    """

    DATA = 0
    HEARTBEAT = 1
    FIRST = 2
    QUEUES = 3
    FILE = 4
    GONE = 5
    COMPLETE = 6
    REFUSAL = 7
    SEGMENT = 8


# ---- greetings ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class LaneTail:
    """The end of a lane that a replica has: CRC-32 of [begin, end), which is in one segment."""

    lane: int
    begin: int
    end: int
    crc: int


@dataclass(frozen=True)
class Hello:
    """What a replica says first. `store` is "" where it has nothing yet.

    `follows` is False for somebody who asks only which epoch the store has. `wants` has the starts
    of segments that the replica has lost, by lane: then it gets these, and nothing else.
    """

    name: str
    store: str = ""
    epoch: int = 0
    follows: bool = True
    lanes: tuple[LaneTail, ...] = ()
    wants: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    protocol: int = PROTOCOL

    def to_bytes(self) -> bytes:
        return _greeting(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Hello:
        """Reads what `to_bytes` has made. Raises ReplicationRefused for anything else."""
        values = _values(data)
        try:
            _check_protocol(values)
            lanes = tuple(
                LaneTail(
                    number_below(one["lane"], LANE_ROWS),
                    number_below(one["begin"]),
                    number_below(one["end"]),
                    number_below(one["crc"], 1 << 32),
                )
                for one in values["lanes"]
            )
            hello = cls(
                values["name"],
                values["store"],
                number_below(values["epoch"]),
                values["follows"] is True,
                lanes,
                {
                    number_below(int(lane), LANE_ROWS): tuple(number_below(start) for start in starts[:WANTED_MOST])
                    for lane, starts in values.get("wants", {}).items()
                },
            )
            if not (isinstance(hello.name, str) and is_replica_name(hello.name)):
                raise ValueError("name")
            if hello.store != "" and not _STORE_ID.fullmatch(hello.store):
                raise ValueError("store")
            if len({tail.lane for tail in lanes}) < len(lanes):
                raise ValueError("lanes")
            if any(not tail.end - TAIL_BYTES <= tail.begin <= tail.end for tail in lanes):
                raise ValueError("tail")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplicationRefused(f"this is no greeting of a replica ({error!r})") from error
        return hello


@dataclass(frozen=True)
class Welcome:
    """What a store answers: what the `store.json` of a copy needs, and its lanes' first and limit.

    `epochs` has all epochs of the store, the oldest first. `acknowledged` says how far a replica of
    this name had each lane when the store heard of it last, as far as the store still has that.
    """

    store: str
    epoch: int
    segment_bytes: int
    generation: int
    heartbeat_ms: int
    """After this time without data it says that all is well."""
    housekeeping_ms: int
    """A side that says nothing for this long is gone."""
    config: dict[str, Any] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    lanes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    acknowledged: Mapping[int, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return _greeting({"protocol": PROTOCOL, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Welcome:
        """Raises ReplicationRefused, and what the store refuses with."""
        values = _values(data)
        raise_refusal(values)
        try:
            _check_protocol(values)
            welcome = cls(
                values["store"],
                number_below(values["epoch"]),
                number_below(values["segment_bytes"], (1 << 30) + 1),
                number_below(values["generation"]),
                number_below(values["heartbeat_ms"], 1 << 32),
                number_below(values["housekeeping_ms"], 1 << 32),
                values["config"],
                epochs_from_json(values["epochs"]),
                {
                    number_below(int(lane), LANE_ROWS): (number_below(a), number_below(b))
                    for lane, (a, b) in values["lanes"].items()
                },
                {
                    number_below(int(lane), LANE_ROWS): number_below(end)
                    for lane, end in values.get("acknowledged", {}).items()
                },
            )
            size = welcome.segment_bytes
            if not _STORE_ID.fullmatch(welcome.store) or size < 1 << 12 or size & (size - 1):
                raise ValueError("store or segment_bytes")
            if any(first % size for first, _ in welcome.lanes.values()) or not isinstance(welcome.config, dict):
                raise ValueError("lanes or config")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplicationRefused(f"this is no answer of a store of ours ({error!r})") from error
        return welcome


def _greeting(values: dict[str, Any]) -> bytes:
    data = orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)
    if len(data) > GREETING_BYTES_MAX:
        raise ReplicationRefused(f"a greeting of {len(data):,} bytes; allowed are {GREETING_BYTES_MAX:,}")
    return LENGTH.pack(len(data)) + data


def _values(data: bytes) -> dict[str, Any]:
    try:
        values = orjson.loads(data)
    except ValueError as error:
        raise ReplicationRefused(f"a greeting is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ReplicationRefused("a greeting is not an object of JSON")
    return values


def _check_protocol(values: dict[str, Any]) -> None:
    if values["protocol"] != PROTOCOL:
        raise ReplicationRefused(
            f"the other side speaks version {values['protocol']!r:.20} of the protocol, this one {PROTOCOL}: install the "
            f"same version of the package on both machines"
        )


# ---- refusals ----------------------------------------------------------------------------------

_REFUSALS = (ReplicaRefused, StoreSuperseded, ReplicationRefused)


def refusal(error: CommitLogError) -> bytes:
    """The JSON of a refusal, as a greeting or as the body of a frame."""
    kind = type(error) if isinstance(error, _REFUSALS) else ReplicationRefused
    return orjson.dumps({"error": kind.__name__, "message": str(error)[:10_000]})


def raise_refusal(values: Mapping[str, Any]) -> None:
    """Raises the error of a refusal, if it is one."""
    if "error" in values:
        kinds = {kind.__name__: kind for kind in _REFUSALS}
        raise kinds.get(str(values["error"]), ReplicationRefused)(str(values.get("message", "")))


# ---- frames ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the store. A FrameReader's body is good until it reads the next frame."""

    kind: Kind
    lane: int
    offset: int
    body: bytes | memoryview


def frame(kind: Kind, lane: int, offset: int, body: bytes = b"") -> bytes:
    """A frame's bytes."""
    return HEAD.pack(kind, lane, offset, len(body)) + body


def read_greeting(receive: Callable[[memoryview], int]) -> bytes:
    """The JSON of the other side's greeting. Raises ReplicationRefused, EOFError, OSError."""
    (length,) = LENGTH.unpack(_exactly(receive, LENGTH.size))
    if length > GREETING_BYTES_MAX:
        raise ReplicationRefused(f"a greeting of {length:,} bytes; allowed are {GREETING_BYTES_MAX:,}")
    return bytes(_exactly(receive, length))


class FrameReader:
    """Reads the frames of a connection, all into the same memory.

    `receive` is a socket's `recv_into`.
    """

    def __init__(self, receive: Callable[[memoryview], int]) -> None:
        self._receive = receive
        self._head, self._room = memoryview(bytearray(HEAD.size)), memoryview(bytearray(BODY_BYTES_MAX))

    def read(self) -> Frame:
        """The next frame.

        Raises ReplicationRefused, and what the store refuses with. Raises EOFError where the
        connection ends, and OSError.
        """
        _fill(self._head, self._receive)
        number, lane, offset, size = HEAD.unpack(self._head)
        try:
            kind = Kind(number)
        except ValueError:
            raise ReplicationRefused(f"a frame of an unknown kind, {number}") from None
        if not 0 <= size <= BODY_BYTES_MAX:
            raise ReplicationRefused(f"a frame of {size:,} bytes; allowed are {BODY_BYTES_MAX:,}")
        if not 0 <= offset < OFFSET_MAX:
            raise ReplicationRefused(f"a frame for offset {offset:,}, which no log has")
        if (lane >= LANE_ROWS) if kind in (Kind.DATA, Kind.FIRST, Kind.QUEUES, Kind.SEGMENT) else lane != NO_LANE:
            raise ReplicationRefused(f"a frame for lane {lane}, which no store has")
        body = self._room[:size]
        _fill(body, self._receive)
        if kind is Kind.REFUSAL:
            raise_refusal({"error": "", **_values(bytes(body))})
        return Frame(kind, lane, offset, body)


def _exactly(receive: Callable[[memoryview], int], count: int) -> bytearray:
    data = bytearray(count)
    _fill(memoryview(data), receive)
    return data


def _fill(room: memoryview, receive: Callable[[memoryview], int]) -> None:
    at = 0
    while at < len(room):
        more = receive(room[at:])
        if not more:
            raise EOFError("the connection has ended")
        at += more


class Acknowledgements:
    """Parses a replica's acknowledgements. `is_complete`: it has said that it may be promoted."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_complete = False

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Lane and offset of each acknowledgement that is whole now. Raises ReplicationRefused."""
        data = self._rest + data
        whole = len(data) - len(data) % ACKNOWLEDGEMENT.size
        self._rest = data[whole:]
        pairs = list(ACKNOWLEDGEMENT.iter_unpack(data[:whole]))
        self.is_complete = self.is_complete or (NO_LANE, IS_COMPLETE) in pairs
        found = [(lane, offset) for lane, offset in pairs if lane != NO_LANE]
        if wrong := [pair for pair in found if pair[0] >= LANE_ROWS or not 0 <= pair[1] < OFFSET_MAX]:
            raise ReplicationRefused(
                f"an acknowledgement of lane {wrong[0][0]}, offset {wrong[0][1]}, which no store has"
            )
        return found


# ---- bodies ------------------------------------------------------------------------------------


def ends_to_bytes(ends: Mapping[int, int]) -> bytes:
    """The body of a HEARTBEAT: lane → how far it may be sent."""
    return b"".join(_END.pack(lane, end) for lane, end in sorted(ends.items()))


def ends_from_bytes(body: bytes | memoryview) -> dict[int, int]:
    """Raises ReplicationRefused."""
    if len(body) % _END.size:
        raise ReplicationRefused(f"a heartbeat of {len(body)} bytes")
    ends = dict(_END.iter_unpack(body))
    if any(lane >= LANE_ROWS or not 0 <= end < OFFSET_MAX for lane, end in ends.items()):
        raise ReplicationRefused("a heartbeat with a lane or an offset that no store has")
    return ends


def queues_from_bytes(body: bytes | memoryview) -> dict[str, int]:
    """The body of a QUEUES frame. Raises ReplicationRefused."""
    values = _values(bytes(body))
    for topic, offset in values.items():
        if (
            not re.fullmatch(_TOPIC, topic)
            or topic in (".", "..")
            or type(offset) is not int
            or not 0 <= offset < 1 << 56
        ):
            raise ReplicationRefused(f"a consume queue that can't be: {topic!r:.100} at {offset!r:.40}")
    return values


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a small file: its name below the store's directory, its whole size, some bytes."""

    name: str
    total: int
    part: bytes


def file_frames(name: str, data: bytes) -> list[bytes]:
    """The frames of a small file. Raises ReplicationRefused where it is too large."""
    encoded = check_file_name(name).encode()
    if len(data) > FILE_BYTES_MAX:
        raise ReplicationRefused(f"{name}: {len(data):,} bytes; allowed are {FILE_BYTES_MAX:,}")
    head = _NAME_LENGTH.pack(len(encoded), len(data)) + encoded
    step = BODY_BYTES_MAX - len(head)
    return [frame(Kind.FILE, NO_LANE, at, head + data[at : at + step]) for at in range(0, max(len(data), 1), step)]


def file_part(body: bytes | memoryview) -> FilePart:
    """The body of a FILE frame. Raises ReplicationRefused."""
    data = bytes(body)
    try:
        length, total = _NAME_LENGTH.unpack_from(data)
        name = data[_NAME_LENGTH.size : _NAME_LENGTH.size + length].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ReplicationRefused(f"a frame of a file that can't be read ({error})") from error
    part = data[_NAME_LENGTH.size + length :]
    if not total <= FILE_BYTES_MAX or len(part) > total:
        raise ReplicationRefused(f"a file of {total:,} bytes; allowed are {FILE_BYTES_MAX:,}")
    return FilePart(check_file_name(name), total, part)


def check_file_name(name: str) -> str:
    """Returns the name of a small file. Raises ReplicationRefused for any other name."""
    if not _FILE_NAME.fullmatch(name):
        raise ReplicationRefused(f"{name!r:.200} is no file that a copy of a store has")
    return name
