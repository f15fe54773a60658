"""Every word of the control region, in one table.

The control region is one small file, `control`, in the store's pool directory. Whoever maps it sees
the whole state of the pipeline without asking anybody: readers find the limits in it, `commitlog
stat` the counters, and the next start what the last one left behind. All numbers are unsigned
64-bit words in the machine's byte order.

    byte 0         ┌──────────────────────────────┐
                   │ header            512 words  │  identity of the pool, closing flag
    byte 4096      ├──────────────────────────────┤
                   │ 8 stage rows   × 256 words   │  sleep sequence, heartbeat, counters, one histogram
    byte 20480     ├──────────────────────────────┤
                   │ 128 lane rows  × 128 words   │  positions, requests, faults, counters of a lane
    byte 151552    └──────────────────────────────┘

**One writer per word.** A word is stored by one role only, and words of different roles never share
a cache line, so that no store of one process delays or overwrites another's. The roles: the
*lessee* holds the lane's lock and sends; *committer*, *flusher*, *allocator*, *dispatcher* are the
stages, each of them alone because it holds its stage lock; the *supervisor* holds the store's lock;
the *lock holder* is whoever holds the lane's lock. While the supervisor recovers a store it holds
every one of these locks, and only then may it store all words.

The cache-line rule is Aeron's (one counter a line); asserting a layout at import is TigerBeetle's
habit.
"""

from __future__ import annotations

WORD_BYTES = 8
LINE_WORDS = 8
"""Words on one cache line of 64 bytes."""

MAGIC = int.from_bytes(b"CLOGSHM\x01", "little")
LAYOUT_VERSION = 1

HEADER_WORDS = 512
STAGE_ROWS, STAGE_ROW_WORDS = 8, 256
LANE_ROWS, LANE_ROW_WORDS = 128, 128
STAGES_AT = HEADER_WORDS
LANES_AT = STAGES_AT + STAGE_ROWS * STAGE_ROW_WORDS
CONTROL_WORDS = LANES_AT + LANE_ROWS * LANE_ROW_WORDS
CONTROL_BYTES = CONTROL_WORDS * WORD_BYTES
MAX_SLOTS = 8
PUT_TIME_BUCKETS = 13
SAMPLES, SAMPLE_WORDS = 121, 3
"""Throughput is noted every five seconds, for ten minutes: monotonic ns, messages, bytes."""
DIRECT_WINDOW = 8
"""At most so many unflushed segments of a lane may be written directly."""
ENTRY_COUNTS = 3
"""One each for `dispatched` and `dispatch_synced`, and one that is being written."""
HISTOGRAM_BUCKETS = 192

STAGES = ("committer", "flusher", "allocator", "dispatcher")
"""Names of the stages; the index is the row in the control region."""


def segment_start(where: int, size: int) -> int:
    """The first offset of the segment that holds `where`, in a log whose segments have `size` bytes."""
    return where - where % size


class Header:
    """Word indices from the start of the region."""

    # line 0, supervisor: whose pool this is
    MAGIC = 0
    LAYOUT_VERSION = 1
    GENERATION = 2  # raised by every start; the same number stands in store.json
    STORE_ID_HIGH = 3
    STORE_ID_LOW = 4
    STORE_DEVICE = 5  # and inode of the store's directory: a copy of a store must not adopt the original's pool
    STORE_INODE = 6
    # line 1, supervisor: what it is doing
    CLOSING = 8  # 1 while stopping: producers raise StoreStopped; stored by a stage when the supervisor was killed
    SUPERVISOR_PID = 9  # 0 after a proper stop
    SUPERVISOR_HEARTBEAT = 10  # CLOCK_MONOTONIC, ns
    # line 2, allocator: retention
    RETENTION_FLAGS = 16  # what it is up against, one bit each (statistics.py)
    CLOCK_WALL_MS = 17  # both clocks when the allocator first ran after the store's start
    CLOCK_BOOT_MS = 18
    CLOCK_GENERATION = 19  # which start that was
    DELETED_SEGMENTS = 20
    DELETED_BYTES = 21
    FORCED_SEGMENTS = 22  # of these, deleted for the disk's sake before their time, or under a registered reader
    DISK_USED_PERMILLE = 23
    # line 4, supervisor: how many samples of the throughput were taken; then the last of them,
    # number i at place i mod 121
    SAMPLES_TAKEN = 32
    SAMPLES = 64


class Stage:
    """Word indices from the start of a stage's row."""

    # line 0, the stage: read by every append, so nothing else may be on its line
    SLEEP = 0  # a sequence: odd while the stage is asleep and wants a wakeup; raised at each change
    # line 1, the stage
    PID = 8
    STARTED_MS = 9  # wall clock
    HEARTBEAT = 10  # CLOCK_MONOTONIC, ns, stored every round
    ROUNDS = 11
    WAKEUPS = 12  # rounds begun by a wakeup and not by the interval
    BAD_FRAMES = 13  # frames that were none of ours, dropped
    ACTIONS = 14  # commits, syncs, segments made, records placed
    LEFT = 15  # bytes that were left undone at the stop
    # line 2, supervisor
    RESTARTS = 16
    # lines 3 and on, the stage: how long its actions took, in microseconds (statistics.py)
    HISTOGRAM = 24
    # line 27, the stage
    LINGERING = 216  # 1 while it rests after work: who waits for a synchronous flush wakes it all the same


class Lane:
    """Word indices from the start of a lane's row. Positions are bytes of the lane's log and only
    grow.
    """

    # line 0, lessee
    WROTE = 0
    # line 1, committer
    COMMITTED = 8
    # line 2, flusher
    FLUSHED = 16
    # line 3, dispatcher
    DISPATCHED = 24
    DISPATCH_SYNCED = 25  # consume queues are durable up to here
    DISPATCHED_TIMESTAMP = 26  # store timestamp (ms) of the last record dispatched
    # line 4, lessee
    FLUSH_REQUESTED = 32  # somebody waits for this position to be flushed (group commit)
    LISTENING = 33  # 1 while somebody sleeps until the flusher says something
    LESSEE_PID = 34  # 0 after a proper close
    BLOCKED = 35  # CLOCK_MONOTONIC ns since when the lessee waits for a buffer, 0 if it does not
    # line 5, lessee: statistics
    MESSAGES = 40
    BUFFER_WAITS = 42
    BUFFER_WAIT_NS = 43
    BUFFER_TIMEOUTS = 44
    BUFFER_WAIT_NS_MAX = 46
    DIRECT_SEGMENTS = 45  # how many were written directly because no buffer was free
    # line 6, lessee: where the data of the segment in slot 0, 1, … ends (after its BLANK); stored
    # before the roll
    DATA_END = 48
    # line 7, lock holder: the lane's buffers
    BUFFERS = 56  # a sequence: odd while the lane is prepared for a lessee
    SEGMENT_SIZE = 57
    SLOTS = 58  # 0: no buffers, the lessee writes the segment files itself
    # line 8, allocator
    ALLOCATED = 64  # segment files exist up to here
    ALLOCATOR_FAULT = 65  # errno, 0 when healthy
    FIRST = 66  # the log's first offset kept; grows when retention retires a segment
    LOW_WATER = 67  # how many times no buffer was free for long
    LOCKED_BYTES = 68  # of the lane's buffers, locked into memory
    # line 9, flusher
    OPENED = 72  # the flusher holds a descriptor of every unflushed segment that starts below this
    REWRITE_WANTED = 73  # a sequence: raised when [flushed, committed] has to be written again
    FLUSHER_FAULT = 74
    SYNCS = 75
    # FIRST as `positions` has it durably; 0 until this start has written it. Retention unlinks what
    # lies below.
    FIRST_RECORDED = 76
    # line 10, committer
    REWRITTEN = 80  # the last REWRITE_WANTED that was carried out
    COMMITTER_FAULT = 81
    COMMITS = 82
    # line 11, dispatcher
    DISPATCHER_FAULT = 88
    DISPATCHED_RECORDS = 89
    # What the ends of the lane's consume queues add up to (ENTRIES) at a log offset (ENTRIES_AT);
    # three pairs.
    ENTRIES_AT = 90
    ENTRIES = 93
    # line 12, lessee: segment S is written to its file by the lessee where word S mod 8 is S + 1
    DIRECT = 96
    # lines 13 and 14, lessee: how many puts took how long, RocketMQ's buckets; the first is not
    # counted (statistics.py)
    PUT_TIMES = 104


def segment_start(where: int, size: int) -> int:
    """The first offset of the segment that holds `where`."""
    return where - where % size


_WRITERS: dict[type, dict[str, tuple[str, int]]] = {
    Header: {
        "supervisor": (
            "MAGIC LAYOUT_VERSION GENERATION STORE_ID_HIGH STORE_ID_LOW STORE_DEVICE STORE_INODE "
            "CLOSING SUPERVISOR_PID SUPERVISOR_HEARTBEAT SAMPLES_TAKEN SAMPLES",
            HEADER_WORDS,
        ),
        "allocator": (
            "RETENTION_FLAGS CLOCK_WALL_MS CLOCK_BOOT_MS CLOCK_GENERATION DELETED_SEGMENTS DELETED_BYTES FORCED_SEGMENTS "
            "DISK_USED_PERMILLE",
            HEADER_WORDS,
        ),
    },
    Stage: {
        "stage": (
            "SLEEP PID STARTED_MS HEARTBEAT ROUNDS WAKEUPS BAD_FRAMES ACTIONS LEFT HISTOGRAM LINGERING",
            STAGE_ROW_WORDS,
        ),
        "supervisor": ("RESTARTS", STAGE_ROW_WORDS),
    },
    Lane: {
        "lessee": (
            "WROTE FLUSH_REQUESTED LISTENING LESSEE_PID BLOCKED DATA_END DIRECT "
            "MESSAGES BUFFER_WAITS BUFFER_WAIT_NS BUFFER_WAIT_NS_MAX BUFFER_TIMEOUTS DIRECT_SEGMENTS PUT_TIMES",
            LANE_ROW_WORDS,
        ),
        "committer": ("COMMITTED REWRITTEN COMMITTER_FAULT COMMITS", LANE_ROW_WORDS),
        "flusher": ("FLUSHED OPENED REWRITE_WANTED FLUSHER_FAULT SYNCS FIRST_RECORDED", LANE_ROW_WORDS),
        "dispatcher": (
            "DISPATCHED DISPATCH_SYNCED DISPATCHED_TIMESTAMP DISPATCHER_FAULT DISPATCHED_RECORDS ENTRIES_AT ENTRIES",
            LANE_ROW_WORDS,
        ),
        "allocator": ("ALLOCATED ALLOCATOR_FAULT FIRST LOW_WATER LOCKED_BYTES", LANE_ROW_WORDS),
        "lock holder": ("BUFFERS SEGMENT_SIZE SLOTS", LANE_ROW_WORDS),
    },
}
_WIDTHS = {
    "HISTOGRAM": HISTOGRAM_BUCKETS,
    "DATA_END": MAX_SLOTS,
    "DIRECT": DIRECT_WINDOW,
    "PUT_TIMES": PUT_TIME_BUCKETS,
    "ENTRIES_AT": ENTRY_COUNTS,
    "ENTRIES": ENTRY_COUNTS,
    "SAMPLES": SAMPLES * SAMPLE_WORDS,
}
_ALONE = ("WROTE", "COMMITTED", "FLUSHED", "SLEEP")


def _check_layout() -> None:
    """Every word has one writer, no two overlap, no cache line has two writers, hot words have a
    line to themselves.
    """
    for block, writers in _WRITERS.items():
        owner_of_line: dict[int, str] = {}
        names_on_line: dict[int, set[str]] = {}
        taken: set[int] = set()
        listed: set[str] = set()
        for writer, (names, row_words) in writers.items():
            for name in names.split():
                index: int = getattr(block, name)
                words = set(range(index, index + _WIDTHS.get(name, 1)))
                assert max(words) < row_words, f"{block.__name__}.{name} is outside its row"
                assert not words & taken, f"{block.__name__}.{name} overlaps another word"
                taken |= words
                listed.add(name)
                for line in {word // LINE_WORDS for word in words}:
                    assert owner_of_line.setdefault(line, writer) == writer, f"two writers on the line of {name}"
                    names_on_line.setdefault(line, set()).add(name)
        declared = {name for name in vars(block) if name.isupper()}
        assert declared == listed, f"{block.__name__}: {declared ^ listed} without a writer"
        for names_together in names_on_line.values():
            for name in _ALONE:
                assert name not in names_together or len(names_together) == 1, f"{name} shares its cache line"
    assert CONTROL_BYTES == 151552


_check_layout()
