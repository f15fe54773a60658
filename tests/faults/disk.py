"""What a power cut would leave of a lane, read from the images that a FaultyChannel keeps."""

from __future__ import annotations

from commitlog.disk.store_directory import StoreDirectory
from commitlog.record.scan import scan
from commitlog.record.table import Stop
from commitlog.shm.layout import segment_start
from tests.faults.channel import FaultsDirectory


def durable_bodies(store: StoreDirectory, faults: FaultsDirectory, lane: int, flushed: int) -> list[bytes]:
    """The bodies below `flushed` (offset of the lane's log).

    AssertionError where anything below it is not whole.
    """
    size, where = store.load().segment_bytes, 0
    bodies: list[bytes] = []
    while where < flushed:
        start = segment_start(where, size)
        data, end = faults.durable(store.lane_directory(lane).segment_path(start)), min(flushed - start, size)
        assert len(data) >= end, f"lane {lane}: flushed is {flushed}, and {start} was never synced so far"
        table = scan(data, where - start, end, start, lane, check_crc=True)
        places = zip(table.body_positions.tolist(), table.body_sizes.tolist(), strict=True)
        bodies += [data[at : at + length] for at, length in places]
        where = start + size if table.stop is Stop.BLANK else start + table.stop_position
        whole = table.stop in (Stop.FULL, Stop.BLANK) or where >= flushed
        assert whole, f"lane {lane}: {where} is below flushed ({flushed}) and not durable: {table.stop} {table.reason}"
    return bodies
