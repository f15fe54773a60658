"""The requests of clients and the answers: the bodies of Flight's actions and tickets.

Each is one JSON object. A server reads it strictly: a field that is missing, is not known here, or
has another type is refused. Nothing here holds a credential or a path.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import pyarrow as pa

from commitlog.columns.read_plan import DEFAULTS, Isolation, ReadOptions

QueueTime = tuple[str, int, int]
"""Topic, lane, and a time in ms."""
QueuePart = tuple[str, int, int, int]
"""Topic, lane, and the queue offsets [begin, end)."""
Offsets = dict[str, dict[int, int]]

WAIT_MS_MAX, NAMED_WAIT_MS_MAX = 1_000, 10_000
"""How long the answer to `look` may wait for something new, without a name and with one."""
BATCH_BYTES_MAX = 64 << 20
"""Bytes of a batch that a client may send. Ours send smaller ones."""

WANTS_TOKEN = "the server wants a token"
"""The error for a client without a token. The client's side adds how to give one."""


@dataclass(frozen=True)
class Look:
    """Action `look`: which topics and queues the store has.

    The queues are those of `topics`, or all (None). `seen` is the version of the last answer. If
    nothing of these queues has moved since, the answer is short, and comes as soon as something
    does, or after `wait_ms` (1,000 at most). A server that has too many such requests does not
    wait.

    A wait with a name may last 10,000 ms, because a request of the same `waiter` that does not wait
    ends it.
    """

    store: str
    isolation: Isolation = "flushed"
    topics: tuple[str, ...] | None = None
    seen: str = ""
    wait_ms: int = 0
    waiter: str = ""


@dataclass(frozen=True)
class Looked:
    """The answer to `look`. `topics` and `queues` are None if nothing has moved since `seen`."""

    version: str
    store_id: str
    one_log: bool
    live: bool
    ports: tuple[int, ...]
    """The ports of all processes of this server, its own among them."""
    topics: dict[str, bool] | None = None
    """Topic → whether it was deleted, and has had no message since."""
    queues: dict[str, dict[int, tuple[int, int]]] | None = None
    """Topic → lane → first and end."""
    damaged: dict[str, dict[int, str]] = field(default_factory=dict)
    """Topic → lane → why nothing of that lane can be read."""
    epoch: int = 0
    """The number of the epoch that the store is in."""
    warning: str = ""
    """The text of a ReadingWarning about the store; "" if all is well."""
    identity: str = ""
    """Differs once another store, or a restored copy, is at the path that is served."""


@dataclass(frozen=True)
class SharedEnds:
    """Action `shared_ends`: the ends of the messages that queues have from an earlier epoch.

    The answer is a list of queue offsets in the same order, with null for a queue whose messages
    are all the same.
    """

    store: str
    epoch: int
    queues: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class FindByTimes:
    """Action `find_by_times`: the first message of each queue stored at or after a time.

    The answer is a list of queue offsets in the same order, with null where there is none.
    """

    store: str
    times: tuple[QueueTime, ...]
    isolation: Isolation = "flushed"


@dataclass(frozen=True)
class Sizes:
    """Action `sizes`: the mean bytes of the records of each range, as a list in the same order."""

    store: str
    ranges: tuple[QueuePart, ...]
    isolation: Isolation = "flushed"


@dataclass(frozen=True)
class LimitRows:
    """Action `limit_rows`: how far to read each range, for at most `most` rows of a typed topic.

    The answer is a list of queue offsets in the order of the ranges.
    """

    store: str
    ranges: tuple[QueuePart, ...]
    most: int
    first: tuple[str, int]
    options: ReadOptions = DEFAULTS


@dataclass(frozen=True)
class Schemas:
    """Action `schemas`: the newest schema of each typed topic, of `topics` or of all (None).

    The answer is an object: topic → [version, Arrow's IPC message of the schema in base64].
    """

    store: str
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True)
class HoldName:
    """Action `hold_name`: takes a reader's name for 30 seconds, and answers with a lease.

    Each `move_name` renews the lease.
    """

    store: str
    name: str


@dataclass(frozen=True)
class Position:
    """A position of a named reader: see NamedReader."""

    store_id: str
    offsets: Offsets
    pattern: str | None = None
    all_lanes: bool = True
    passed_over: tuple[str, ...] = ()
    all_topics: bool = False
    lanes: tuple[int, ...] | None = None
    members: tuple[int, int] | None = None


@dataclass(frozen=True)
class HoldReader:
    """Action `hold_reader`: takes the name of a Python reader for 30 seconds: see HeldReader.

    Each `move_name` renews the lease.
    """

    store: str
    name: str


@dataclass(frozen=True)
class HeldReader:
    """The answer to `hold_reader`. `position` is None if the name is new."""

    lease: str
    store_id: str
    epoch: int
    position: Position | None


@dataclass(frozen=True)
class MoveName:
    """Action `move_name`: renews a lease, and moves the reader's position if one is given.

    The position is written once a second at most, or `now`. With `release`, the name is given back.
    That of a Python reader is written at once, and never goes back; `epoch` is that of the messages
    that were read. The answer is false if the server does not know the lease.
    """

    store: str
    lease: str
    position: Position | None = None
    now: bool = False
    release: bool = False
    epoch: int | None = None


@dataclass(frozen=True)
class Append:
    """The command of a DoPut: appends the rows of a stream to a store.

    The rows are messages, with the columns of Spark's sink (value, key, topic, headers) and tags.
    `topic` is that of all rows; None: the column names it. With `rows`, they are rows of a typed
    topic. The server answers with `Opened`, then with `Appended` again and again.
    """

    store: str
    topic: str | None = None
    rows: bool = False


@dataclass(frozen=True)
class Opened:
    """The first answer to `append`: the stream has its lane."""

    lane: int
    message_bytes_max: int
    """Bytes of the largest record."""


@dataclass(frozen=True)
class Appended:
    """How many rows of a stream are accepted, and how many of them flushed."""

    accepted: int
    flushed: int
    fault: str = ""
    """The error that keeps rows from being flushed, as server_errors.py writes it."""


@dataclass(frozen=True)
class CheckAppend:
    """Action `check_append`: whether the client may append to a store, and to a topic.

    The answer has the topic's newest schema, if it is typed: see `schemas`. With a `version`, it
    has that one, if the topic still has it.
    """

    store: str
    topic: str | None = None
    version: int | None = None


@dataclass(frozen=True)
class Stores:
    """Action `stores`: the names of the stores that the client may use, as a list."""


@dataclass(frozen=True)
class Stat:
    """Action `stat`: what `commitlog stat --json` prints, with the store's name in place of paths.

    Topics that the client may not see are left out, and readers of such topics.
    """

    store: str


@dataclass(frozen=True)
class Topics:
    """Action `topics`: what `commitlog topics --json` lists, of what the client may see."""

    store: str


@dataclass(frozen=True)
class RowsTicket:
    """A ticket: rows of a store by their explicit offsets, and what becomes of their values.

    It holds no credential, and the server checks it anew each time. Years later it gives the same
    rows, or the same error.
    """

    store: str
    store_id: str
    schema: str
    """The columns: Arrow's IPC message of a schema, in base64."""
    slices: tuple[QueuePart, ...]
    options: ReadOptions = DEFAULTS
    epoch: int | None = None
    """The epoch that the offsets are of; None in tickets of old clients, for any.

    Whole records are refused in any other epoch: a Reader then looks again.
    """


def encode_schema(schema: pa.Schema) -> str:
    """Arrow's IPC message of a schema, in base64: text that JSON can hold."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """What `encode_schema` was given. Raises ValueError, TypeError, OSError, pa.ArrowException."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
