"""A reader of a live store meets damage as often as it looks, however quickly it looks again."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CorruptRecord
from tests.nightly import with_nightly
from tests.waiting import wait_until


@pytest.mark.parametrize("follow", with_nightly([True], [False]))
def test_damage_in_a_live_store_is_told_each_time(tmp_path: Path, follow: bool) -> None:
    """The third look was the end for a reader that does not follow: nobody heard of the rest."""
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as producer:
        producer.send_batch("orders", [b"x" * 100] * 10)
        producer.flush()
        wait_until(lambda: store.statistics().lanes[0].dispatched == store.statistics().lanes[0].wrote)
        with commitlog.Reader(store.path, "orders") as reader:
            where = [message.physical_offset for message in reader][5]
        with (store.path / "lanes/0/commitlog" / ("0" * 20)).open("r+b") as segment:
            segment.seek(where + 4)
            magic = segment.read(1)
            segment.seek(where + 4)
            segment.write(b"\xff")
            segment.flush()
            with commitlog.Reader(store.path, "orders", follow=follow) as reader:
                assert [next(reader).offset for _ in range(5)] == [0, 1, 2, 3, 4]
                for _ in range(5):
                    with pytest.raises(CorruptRecord):
                        next(reader)
                segment.seek(where + 4)
                segment.write(magic)
                segment.flush()
                assert [next(reader).offset for _ in range(5)] == [5, 6, 7, 8, 9]
