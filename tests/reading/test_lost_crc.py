"""The whole-record CRC of a message is damaged, and nothing else covers its key and headers."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CorruptRecord, ReadingWarning
from tests.builders.hand_made import HandMadeStore

SEGMENT = 1 << 14
BAD = 20
TAILS = {"letters": b"x" * 20, "one letter": b"__CRC3X#\x01", "of a body": b"body of 1" * 4, "zeros": bytes(8)}
"""What is at the end of the record, or where its CRC property begins."""


@pytest.fixture(params=TAILS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A stopped store of which one message has such a tail."""
    store = HandMadeStore(tmp_path / "store", SEGMENT)
    lane = store.lane(0)
    for row in range(2 * BAD):
        lane.append("orders", b"body of %d" % row, properties={"header": "right"})
    store.publish()
    record, tail = lane.records[BAD], TAILS[request.param]
    end = record.physical_offset + record.total_size
    with store.directory.lane_directory(0).segment_path(0).open("r+b") as segment:
        segment.seek(end - 20 if request.param == "one letter" else end - len(tail))
        segment.write(tail)
        segment.seek(end - 26)
        segment.write(b"w")  # in the header's value
    return store.path


@pytest.mark.parametrize("topic", ["orders", None])
def test_no_reader_gives_such_a_message(path: Path, topic: str | None) -> None:
    """A strict reader stops there, and another one leaves it out."""
    with pytest.raises(CorruptRecord), commitlog.Reader(path, topic) as strict:
        assert all(message.headers == {"header": "right"} for message in strict)
    with pytest.warns(ReadingWarning), commitlog.Reader(path, topic, ignore_corrupt=True) as reader:
        assert [message.offset for message in reader] == [number for number in range(2 * BAD) if number != BAD]
