"""The plan of a read: slices of lanes, and how values, damage and loss are treated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commitlog.disk.store_directory import LaneDirectory, StoreDirectory
from commitlog.reading.lane_index import LaneIndex


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows [start, end) of one topic in one lane.

    Some rows may have no consume queue entry yet. They are found by walking the log from the record
    at offset `walk_from`, and none of them is beyond `limit` (both in bytes). `walk_from` is −1 if
    all rows have an entry.
    """

    topic: str
    lane: int
    start: int
    end: int
    walk_from: int
    limit: int

    @property
    def rows(self) -> int:
        return self.end - self.start


def slices_of(index: LaneIndex, topic: str, begin: int, end: int) -> list[Slice]:
    """Makes slices of a topic's queue offsets [begin, end), all of which the lane has.

    The first slice has the rows with consume queue entries, the second the rows without.
    """
    queue = index.queues[topic]
    middle = min(max(queue.indexed, begin), end)
    parts = (
        Slice(topic, index.lane, begin, middle, -1, index.limit),
        Slice(topic, index.lane, middle, end, queue.walk_from(middle), index.limit),
    )
    return [piece for piece in parts if piece.rows > 0]


Isolation = Literal["flushed", "committed"]
Values = Literal["bytes", "columns", "json"]
"""How a value is shown: as one column of bytes, as its topic's columns, or as the fields of JSON.
"""

Shown = Literal[Values, "records"]
"""Values, or `records`: whole records, one a row, which is how a server sends them to a Reader."""

JsonMode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]


@dataclass(frozen=True)
class Wording:
    """The names of options in errors and warnings, in the words of the reader's user."""

    option: str = "Option"
    ignore_corrupt: str = "ignoreCorruptRecords=true"
    accept_loss: str = "failOnDataLoss=false"
    read_anew: str = "Start the query again"
    as_bytes: str = "values=bytes"


_WORDINGS = {
    "spark": Wording(),
    "read_arrow": Wording(
        "Argument", "ignore_corrupt=True", "fail_on_data_loss=False", "Call read_arrow again", 'values="bytes"'
    ),
    "read": Wording(
        "Argument", "ignore_corrupt=True", "fail_on_data_loss=False", "Call commitlog.read again", 'values="bytes"'
    ),
    "reader": Wording("Argument", "ignore_corrupt=True", "fail_on_data_loss=False", "Make a new reader"),
    "cat": Wording("Option", "--skip-corrupt", "--from earliest", "Run the command again", "cat without --rows"),
    "forward": Wording("Option", "--accept-loss", "--accept-loss", "Start the forwarder again"),
}


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read. The user's door (`reader`) makes the object, and the decoder uses it.

    The object goes unchanged through plans, Spark's tasks and a server's tickets. `mode` and
    `corrupt_column` are Spark's options for JSON. The corrupt column has the text of malformed
    values. `reader` also decides by which names errors call the options.
    """

    isolation: Isolation = "flushed"
    fail_on_data_loss: bool = True
    ignore_corrupt: bool = False
    values: Shown = "bytes"
    mode: JsonMode = "PERMISSIVE"
    corrupt_column: str = "_corrupt_record"
    reader: Literal["spark", "read_arrow", "read", "reader", "cat", "forward"] = "spark"

    @property
    def wording(self) -> Wording:
        return _WORDINGS[self.reader]


DEFAULTS = ReadOptions()


@dataclass(frozen=True)
class ReadPlan:
    """Slices of the store at `path`, in the order in which they are read.

    `store_id` is empty for a RocketMQ store root, which has no id. `epoch` is the one that the
    offsets are of: in a later one there may be other messages behind the place where it began.
    """

    path: str
    store_id: str
    segment_bytes: int
    slices: tuple[Slice, ...]
    options: ReadOptions = DEFAULTS
    epoch: int = 0

    @property
    def one_log(self) -> bool:
        """Whether the path is a RocketMQ store root."""
        return not self.store_id

    def lane_directory(self, number: int) -> LaneDirectory:
        if self.one_log:
            return LaneDirectory(Path(self.path), number)
        return StoreDirectory(self.path).lane_directory(number)
