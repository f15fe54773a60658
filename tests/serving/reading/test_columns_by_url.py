"""`Reader(url).arrow_batches`: columns of a served store, under a name."""

from __future__ import annotations

from pathlib import Path

from commitlog import Reader
from tests.builders.hand_made import small_store
from tests.serving.asking import server_of


def test_columns_come_from_a_server_and_are_committed_there(tmp_path: Path) -> None:
    made = small_store(tmp_path / "store")
    with server_of([made.path]) as server:
        url = str(server.address(made.path.name))
        with Reader(url, "orders", name="far") as reader:
            batches = reader.arrow_batches(["partition", "offset"])
            first = next(batches)
            reader.commit()
            batches.close()  # type: ignore[attr-defined]
        with Reader(url, "orders", name="far") as reader:
            rest = list(reader.arrow_batches(["partition", "offset"]))
    rows = [(row["partition"], row["offset"]) for batch in (first, *rest) for row in batch.to_pylist()]
    assert sorted(rows) == [(lane, offset) for lane in (0, 1) for offset in range(100)]
