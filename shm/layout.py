"""Every word of the control region, in one table: where it is, who stores it, what it means.

The control region is one small file, `control`, in the store's pool directory. A process that maps
it sees the whole state of the pipeline and needs no other process for that. Readers find their
limits there, `commitlog stat` finds the counters, and the next start finds the state that the last
one left. All numbers are unsigned 64-bit words in the machine's byte order.

    byte 0         ┌──────────────────────────────┐
                   │ header            512 words  │  identity of the pool, closing flag
    byte 4096      ├──────────────────────────────┤
                   │ 8 stage rows   × 256 words   │  sleep sequence, heartbeat, counters, histogram
    byte 20480     ├──────────────────────────────┤
                   │ 128 lane rows  × 128 words   │  positions, requests, faults, counters of a lane
    byte 151552    └──────────────────────────────┘

**One writer per word.** Only one role stores a word, and words of different roles never share a
cache line. So no store of one process delays or overwrites another's. The roles are:

- the *lessee* holds the lane's lock and sends;
- the *committer*, *flusher*, *allocator*, *dispatcher* and *ha_service* are the stages. Each holds
  its stage lock, so there is only one of each. In a stage's own row it is called the *stage*;
- the *supervisor* holds the store's lock;
- the *lock holder* is any process that holds the lane's lock.

While the supervisor recovers a store it holds all these locks. Only then may it store every word.

**Words that publish** are those whose value says that something else is there: bytes, other words
or files. `memory_order.py` says how they are stored and loaded. All other words are published by
one of them, or stand for themselves, as a counter does.

The import of this module checks the table: each word is inside its block, no two overlap, a cache
line has one writer, and a word that is declared `alone` has its line to itself. The cache-line rule
is Aeron's (one counter a line); checking a layout at import is TigerBeetle's habit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WORD_BYTES = 8
LINE_WORDS = 8
"""Words on one cache line of 64 bytes."""

MAGIC = int.from_bytes(b"CLOGSHM\x01", "little")
LAYOUT_VERSION = 2

HEADER_WORDS = 512
STAGE_ROWS, STAGE_ROW_WORDS = 8, 256
COUNTER_MAX = (1 << 63) - 1
"""More than this nobody has counted: such a word holds garbage."""
LANE_ROWS, LANE_ROW_WORDS = 128, 128
STAGES_AT = HEADER_WORDS
LANES_AT = STAGES_AT + STAGE_ROWS * STAGE_ROW_WORDS
CONTROL_WORDS = LANES_AT + LANE_ROWS * LANE_ROW_WORDS
CONTROL_BYTES = CONTROL_WORDS * WORD_BYTES
MAX_SLOTS = 8
PUT_TIME_BUCKETS = 13
SAMPLES, SAMPLE_WORDS = 121, 3
"""A sample of the throughput (monotonic ns, messages, bytes) every 5 seconds, for 10 minutes."""
DIRECT_WINDOW = 8
"""At most this many unflushed segments of a lane may be written directly."""
ENTRY_COUNTS = 3
"""One count for `dispatched`, one for `dispatch_synced`, and one that is being written."""
HISTOGRAM_BUCKETS = 192

STAGES = ("committer", "flusher", "allocator", "dispatcher")
"""Names of the stages that every running store has."""
HA_SERVICE = "ha_service"
"""The stage of a store that is replicated."""
ALL_STAGES = (*STAGES, HA_SERVICE)
"""Names of all stages; the index is the row in the control region."""

Writer = Literal[
    "supervisor", "stage", "lessee", "lock holder", "committer", "flusher", "allocator", "dispatcher", "ha_service"
]
Block = TypeVar("Block", bound=type)
LogOffset = TypeVar("LogOffset", int, "npt.NDArray[np.int64]")


@dataclass(frozen=True, slots=True)
class Word:
    """The declaration of one word, or of `width` words that follow each other."""

    index: int
    writer: Writer
    width: int
    alone: bool
    publishes: bool


def word(index: int, *, writer: Writer, width: int = 1, alone: bool = False, publishes: bool = False) -> int:
    """Declares a word of a block.

    `alone` says that the word is hot, so nothing else may be on its cache line. `publishes` says
    that who sees its value relies on what was stored before it. `block` puts the index in its
    place, so that `Lane.WROTE` is a plain number where it is used. That is why the type is int, as
    the type of `dataclasses.field()` is that of the field.
    """
    return cast("int", Word(index, writer, width, alone, publishes))


DECLARED: dict[str, dict[str, Word]] = {}
"""Block → name → the declaration of the word."""


def block(*, size: int) -> Callable[[Block], Block]:
    """Makes a class of declared words into one of plain indices, after a check.

    `size` is in words. Raises AssertionError.
    """

    def finish(cls: Block) -> Block:
        words = {name: found for name, found in vars(cls).items() if name.isupper()}
        assert all(isinstance(found, Word) for found in words.values()), (
            f"{cls.__name__}: a word is not declared by word()"
        )
        _check(cls.__name__, words, size)
        DECLARED[cls.__name__] = words
        for name, declared in words.items():
            setattr(cls, name, declared.index)
        return cls

    return finish


def _check(where: str, words: dict[str, Word], size: int) -> None:
    """See the module's text for the rules."""
    name_at: dict[int, str] = {}
    names_on_line: dict[int, set[str]] = {}
    for name, declared in words.items():
        for index in range(declared.index, declared.index + declared.width):
            assert 0 <= index < size, f"{where}.{name} is outside its block"
            assert name_at.setdefault(index, name) == name, f"{where}.{name} overlaps {name_at[index]}"
            names_on_line.setdefault(index // LINE_WORDS, set()).add(name)
    for line, names in names_on_line.items():
        writers = {words[name].writer for name in names}
        assert len(writers) == 1, f"{where}: line {line} has several writers: {sorted(writers)}"
        assert len(names) == 1 or not any(words[name].alone for name in names), f"{where}: line {line} has a hot word"


@block(size=HEADER_WORDS)
class Header:
    """Words of the header: indices from the start of the region."""

    # line 0: whose pool this is
    MAGIC = word(0, writer="supervisor")
    LAYOUT_VERSION = word(1, writer="supervisor")
    GENERATION = word(2, writer="supervisor")  # raised by every start; store.json has the same number
    STORE_ID_HIGH = word(3, writer="supervisor")
    STORE_ID_LOW = word(4, writer="supervisor")
    # the store's directory: a copy of a store must not adopt the original's pool
    STORE_DEVICE = word(5, writer="supervisor")
    STORE_INODE = word(6, writer="supervisor")
    # line 1: what the supervisor does
    CLOSING = word(8, writer="supervisor")  # 1: the store stops; a stage stores it if the supervisor was killed
    SUPERVISOR_PID = word(9, writer="supervisor")  # 0 after a proper stop
    SUPERVISOR_HEARTBEAT = word(10, writer="supervisor")  # CLOCK_MONOTONIC, ns
    # line 2: retention
    RETENTION_FLAGS = word(16, writer="allocator")  # what hinders retention: RetentionFlag in statistics.py
    CLOCK_WALL_MS = word(17, writer="allocator")  # both clocks when the allocator first ran after the start
    CLOCK_BOOT_MS = word(18, writer="allocator")
    CLOCK_GENERATION = word(19, writer="allocator")  # which start that was
    DELETED_SEGMENTS = word(20, writer="allocator")
    DELETED_BYTES = word(21, writer="allocator")
    FORCED_SEGMENTS = word(22, writer="allocator")  # segments deleted before their time, because the disk was too full
    DISK_USED_PERMILLE = word(23, writer="allocator")
    # line 4: samples of the throughput; sample number i is at place i mod 121
    SAMPLES_TAKEN = word(32, writer="supervisor", publishes=True)
    SAMPLES = word(64, writer="supervisor", width=SAMPLES * SAMPLE_WORDS)


@block(size=STAGE_ROW_WORDS)
class Stage:
    """Words of a stage's row: indices from the start of the row."""

    # line 0: every append reads it
    SLEEP = word(
        0, writer="stage", alone=True, publishes=True
    )  # a sequence: odd while the stage sleeps and wants a wakeup
    # line 1
    PID = word(8, writer="stage")
    STARTED_MS = word(9, writer="stage")  # wall clock
    HEARTBEAT = word(10, writer="stage")  # CLOCK_MONOTONIC, ns; stored every round
    ROUNDS = word(11, writer="stage")
    WAKEUPS = word(12, writer="stage")  # rounds that began with a wakeup and not with the end of the interval
    BAD_FRAMES = word(13, writer="stage")  # frames that no process of ours has sent
    ACTIONS = word(14, writer="stage", publishes=True)  # commits, syncs, segments made, slices of a log dispatched
    LEFT = word(15, writer="stage")  # bytes that were left undone at the stop
    # line 2
    RESTARTS = word(16, writer="supervisor")
    # lines 3 to 26: how long the actions took, in microseconds (statistics.py)
    HISTOGRAM = word(24, writer="stage", width=HISTOGRAM_BUCKETS)
    # line 27
    LINGERING = word(216, writer="stage")  # 1 while it rests after work: a synchronous flush wakes it nevertheless
    WAKES_READERS = word(217, writer="stage")  # 1: readers may sleep until ACTIONS changes, it wakes them (futex)


@block(size=LANE_ROW_WORDS)
class Lane:
    """Words of a lane's row: indices from the start of the row.

    Positions are bytes of the lane's log, and only grow.
    """

    # line 0
    WROTE = word(0, writer="lessee", alone=True, publishes=True)
    # line 1
    COMMITTED = word(8, writer="committer", alone=True, publishes=True)
    # line 2
    FLUSHED = word(16, writer="flusher", alone=True, publishes=True)
    # line 3
    DISPATCHED = word(24, writer="dispatcher", publishes=True)
    DISPATCH_SYNCED = word(25, writer="dispatcher", publishes=True)  # the consume queues are durable up to here
    DISPATCHED_TIMESTAMP = word(26, writer="dispatcher")  # store timestamp (ms) of the last record dispatched
    # line 4
    FLUSH_REQUESTED = word(32, writer="lessee", publishes=True)  # somebody waits until this is flushed (group commit)
    LISTENING = word(33, writer="lessee")  # 1 while a thread sleeps until the flusher publishes a notice
    LESSEE_PID = word(34, writer="lessee")  # 0 after a proper close
    BLOCKED = word(35, writer="lessee")  # CLOCK_MONOTONIC ns when the wait for a buffer began; 0: no wait
    # line 5: statistics
    MESSAGES = word(40, writer="lessee")
    BUFFER_WAITS = word(42, writer="lessee")
    BUFFER_WAIT_NS = word(43, writer="lessee")
    BUFFER_TIMEOUTS = word(44, writer="lessee")
    DIRECT_SEGMENTS = word(45, writer="lessee")  # segments written directly because no buffer was free
    BUFFER_WAIT_NS_MAX = word(46, writer="lessee")
    # line 6: where the data of the segment in slot 0, 1, … ends, behind its BLANK. Stored before
    # the producer rolls.
    DATA_END = word(48, writer="lessee", width=MAX_SLOTS)
    # line 7: the lane's buffers
    BUFFERS = word(56, writer="lock holder", publishes=True)  # a sequence: odd while the lane is prepared for a lessee
    SEGMENT_SIZE = word(57, writer="lock holder")
    SLOTS = word(58, writer="lock holder")  # 0: no buffers, the lessee writes the segment files itself
    LOSSES = word(
        59, writer="lock holder", publishes=True
    )  # starts that found accepted messages lost; receipts read both
    LOST_BEHIND = word(60, writer="lock holder")  # a log offset: what was accepted behind it, before the last of them
    # line 8
    ALLOCATED = word(64, writer="allocator", publishes=True)  # segment files exist up to here
    ALLOCATOR_FAULT = word(65, writer="allocator")  # errno, 0 when healthy; the other faults are the same
    FIRST = word(
        66, writer="allocator", publishes=True
    )  # the first offset of the log that is kept: retention raises it
    LOW_WATER = word(67, writer="allocator")  # how many times no buffer was free for a long time
    RETIRED = word(68, writer="allocator", publishes=True)  # the same as FIRST; the lower one counts: see `first_kept`
    # line 9
    OPENED = word(
        72, writer="flusher", publishes=True
    )  # the flusher has each unflushed segment open that starts below this
    REWRITE_WANTED = word(73, writer="flusher", publishes=True)  # a sequence: write [flushed, committed] again
    FLUSHER_FAULT = word(74, writer="flusher")
    SYNCS = word(75, writer="flusher")
    # FIRST as durably recorded in the file `positions`; 0 until this start has written it.
    # Retention unlinks below it.
    FIRST_RECORDED = word(76, writer="flusher", publishes=True)
    FLUSHED_NS = word(77, writer="flusher")  # CLOCK_MONOTONIC of the last sync of the lane; 0: none in this pool
    # line 10
    REWRITTEN = word(80, writer="committer", publishes=True)  # the last REWRITE_WANTED that was carried out
    COMMITTER_FAULT = word(81, writer="committer")
    COMMITS = word(82, writer="committer")
    LOCKED_BYTES = word(83, writer="committer")  # of the lane's buffers, which are locked as they are used
    # line 11
    DISPATCHER_FAULT = word(88, writer="dispatcher")
    DISPATCHED_RECORDS = word(89, writer="dispatcher")
    # Three pairs: a log offset, and the number of entries of all consume queues up to it
    # (`counted_entries` in control_region.py).
    ENTRIES_AT = word(90, writer="dispatcher", width=ENTRY_COUNTS, publishes=True)
    ENTRIES = word(93, writer="dispatcher", width=ENTRY_COUNTS, publishes=True)
    # line 12: segment number S is written directly where the word S mod 8 is S + 1
    DIRECT = word(96, writer="lessee", width=DIRECT_WINDOW)
    # lines 13 and 14: counts of puts by duration, in RocketMQ's buckets. The first bucket is not
    # counted (statistics.py).
    PUT_TIMES = word(104, writer="lessee", width=PUT_TIME_BUCKETS)
    # line 15: replication
    REPLICATED = word(
        120, writer="ha_service", publishes=True
    )  # enough replicas are in sync, and all have the log up to here
    IN_SYNC = word(121, writer="ha_service")  # how many replicas are in sync now
    HA_SERVICE_FAULT = word(122, writer="ha_service")
    REPLICATED_NS = word(123, writer="ha_service")  # CLOCK_MONOTONIC when REPLICATED was last stored


assert CONTROL_BYTES == 151552


def segment_start(where: LogOffset, size: int) -> LogOffset:
    """The start of the segment that holds a log offset. An array of offsets gives an array."""
    return where - where % size
