"""The native core finds the new messages of a lane as Python does, but for what is unusual."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.message import Message, messages_in_python
from commitlog.native import core
from commitlog.record.record_layout import HOSTS_V6, SysFlag, Transaction
from commitlog.record.scan import scan
from tests.native.test_scan import BUFFER_START, FEW, LANE, LANES, MANY, buffers, python

if core is None:
    pytest.skip("there is no native core", allow_module_level=True)

UNUSUAL = SysFlag.COMPRESSED | HOSTS_V6 | Transaction.PREPARED
OFFSETS = st.dictionaries(st.sampled_from(["orders", "a", "b", "ü", "t" * 128]), st.integers(0, 3), max_size=5)
WANTED = st.one_of(st.none(), st.sets(st.sampled_from(["orders", "a", "nobody"]), min_size=1))
Found = tuple[list[Message], int, dict[str, int]]


def found_by_python(data: bytes, start: int, lane: int, offsets: dict[str, int], wanted: set[str] | None) -> Found:
    """What `follow` is to find, said with tables."""
    with python():
        table = scan(data, start, len(data), BUFFER_START, lane, check_crc=True, require_crc=True)
        rows, reached, ends = [], start, dict(offsets)
        for row, (topic, offset) in enumerate(
            zip(table.topic_index.tolist(), table.queue_offsets.tolist(), strict=True)
        ):
            name = table.topics[topic]
            if not table.has_crc[row] or table.sys_flags[row] & UNUSUAL:
                break
            if wanted is None or name in wanted:
                if ends.get(name) != offset:
                    break
                rows.append(row)
                ends[name] = offset + 1
            reached = int(table.positions[row] + table.sizes[row])
        messages = messages_in_python(table, data)
    met = {table.topics[topic] for topic in table.topic_index[np.array(rows, int)].tolist()}
    return [messages[row] for row in rows], reached, {topic: ends[topic] for topic in met}


def check(data: bytes, lane: int | None, offsets: dict[str, int], wanted: set[str] | None) -> None:
    number = LANE if lane is None else lane
    ours = core.follow(data, 0, len(data), (BUFFER_START, number, UNUSUAL), offsets, wanted)
    assert ours == found_by_python(data, 0, number, offsets, wanted)


@FEW
@given(buffers(), LANES, OFFSETS, WANTED)
def test_both_find_the_same(data: bytes, lane: int | None, offsets: dict[str, int], wanted: set[str] | None) -> None:
    check(data, lane, offsets, wanted)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@MANY
@given(buffers(), LANES, OFFSETS, WANTED)
def test_both_find_the_same_at_length(
    data: bytes, lane: int | None, offsets: dict[str, int], wanted: set[str] | None
) -> None:
    check(data, lane, offsets, wanted)


@pytest.mark.parametrize("end", [0, 1, 91, 1 << 62])
def test_nothing_is_found_beyond_the_bytes(end: int) -> None:
    assert core.follow(b"", 0, end, (0, 0, 0), {}, None) == ([], 0, {})
    assert core.follow(bytes(91), 91, end, (0, 0, 0), {}, None) == ([], 91, {})
    assert core.follow(bytes(91), 1 << 62, end, (0, 0, 0), {}, None) == ([], 1 << 62, {})


def test_a_watch_finds_what_has_changed() -> None:
    words = memoryview(bytearray(8 * 12)).cast("Q")
    watch = core.Watch(words, 1, 3, 4, 0)
    before, moved = watch.look(b"")
    assert (before, moved) == (bytes(32), [0, 1, 2, 3])
    words[4] = 7
    words[5] = 8
    after, moved = watch.look(before)
    assert (after, moved) == (bytes(8) + b"\7" + bytes(23), [1])
    watch.wait(before, 1 << 62)  # it does not sleep: a word has changed
    watch.look_for(before, 0, 1, 1 << 62, 1 << 62)
    watch.wait(after, 0)
    watch.look_for(after, (1 << 64) - 1, 1, 0, 0)


def test_a_watch_of_words_that_are_not_there_is_refused() -> None:
    words = memoryview(bytearray(8 * 12)).cast("Q")
    for place in [(12, 1, 1, 0), (0, 12, 2, 0), (0, 1 << 63, 3, 0), (0, 1, 1, 12)]:
        with pytest.raises(IndexError):
            core.Watch(words, *place)
    with pytest.raises(IndexError):
        core.wake(words, 12)
    with pytest.raises(ValueError, match="as many words"):
        core.Watch(words, 0, 1, 2, 0).wait(bytes(15), 0)
    with pytest.raises(ValueError, match="zero"):
        core.Watch(words, 0, 1, 2, 0).look_for(bytes(16), 0, 0, 0, 0)
