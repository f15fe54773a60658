"""One lane's positions are senseless: who does not read it goes on, by path and by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import DamagedFile, ReadingWarning
from commitlog.reading.view import StoreView
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.spark.source import CommitLogDataSource
from tests import command_line
from tests.serving.asking import server_of, url_of_store
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nothing of lane 1 can be read:commitlog.errors.ReadingWarning"),
    pytest.mark.usefixtures("served_base"),  # what gRPC keeps open for good is open before a test looks for leaks
]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlRegion]:
    """The words of a store that runs: `orders` is in lanes 0 and 1, `other` in lane 0 only."""
    with commitlog.Store.open(tmp_path / "store") as store, store.producer() as one, store.producer() as two:
        for topic in ("orders", "other"):
            one.send(topic, b"0").wait("flushed")
        two.send("orders", b"1").wait("flushed")
        with closing(StoreView(store.path)) as view:
            assert view.pool is not None
            control = ControlRegion.attach(view.pool, writable=True)
        row = control.row(1)
        wait_until(lambda: row[Lane.DISPATCH_SYNCED] == row[Lane.FLUSHED] > 0)
        try:
            yield control
        finally:
            control.close()


def spark_values(place: str, **options: str) -> list[bytes]:
    """What Spark's tasks give of a store, planned as a batch."""
    source = CommitLogDataSource({"path": place, "columns": "value", **options})
    reader = source.reader(source.schema())
    tables = (batch for task in reader.partitions() for batch in reader.read(task))
    return [row["value"] for batch in tables for row in batch.to_pylist()]


def test_who_does_not_read_it_goes_on(control: ControlRegion, tmp_path: Path) -> None:
    """Readers of its topic raise by name, and go on as soon as it is mended."""
    path, row = tmp_path / "store", control.row(1)
    with server_of([path]) as server:
        url = url_of_store(server)
        for place in (str(path), url):
            assert commitlog.read_arrow(place, "orders").read_all().num_rows == 2
        sound = row[Lane.DISPATCHED]
        row[Lane.DISPATCHED] = 1 << 60
        for place in (str(path), url):
            with pytest.warns(ReadingWarning, match="nothing of lane 1 can be read"):
                assert commitlog.read_arrow(place, "other").read_all().num_rows == 1
            with pytest.raises(DamagedFile, match=r"lane 1: its positions in .* are damaged"):
                commitlog.read_arrow(place, "orders").read_all()
            assert spark_values(place, assign='{"orders": [0]}') == [b"0"]
            assert spark_values(place, subscribe="other") == [b"0"]
            for options in ({"subscribe": "orders"}, {"assign": '{"orders": [0, 1]}'}):
                with pytest.raises(DamagedFile, match=r"lane 1: its positions in .* are damaged"):
                    spark_values(place, **options)
            listed = command_line.run("cat", place, "--topic", "orders", "--partition", 0)
            assert (listed.returncode, listed.stdout) == (0, b"0\n"), listed
            refused = command_line.run("cat", place, "--topic", "orders")
            assert refused.returncode == 1
            assert b"lane 1: its positions in " in refused.stderr
        row[Lane.DISPATCHED] = sound

        def is_read(place: str) -> bool:
            try:
                return bool(commitlog.read_arrow(place, "orders").read_all().num_rows == 2)
            except DamagedFile:
                return False

        for place in (str(path), url):
            wait_until(lambda place=place: is_read(place))  # type: ignore[misc]
