"""The verdict names every kind of wrong, and nothing where there is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commitlog.ingest import verdict
from commitlog.ingest.verdict import EXACTLY_ONCE, judge

RUN = "r1"


def write(out: Path, batch: int, rows: list[tuple[int | None, int | None]], run: str | None = RUN) -> None:
    """One batch's Parquet file of (producer, sequence) rows."""
    directory = out / f"batch={batch}"
    directory.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "run": pa.array([run] * len(rows), pa.string()),
            "producer": pa.array([row[0] for row in rows], pa.int32()),
            "sequence": pa.array([row[1] for row in rows], pa.int64()),
        }
    )
    pq.write_table(table, directory / "part-0.parquet")


def of(producer: int, *sequences: int) -> list[tuple[int | None, int | None]]:
    return [(producer, sequence) for sequence in sequences]


def test_each_message_once(tmp_path: Path) -> None:
    """Any order, any batches, a producer that sent nothing."""
    write(tmp_path, 0, of(0, 4, 2, 0) + of(1, 1))
    write(tmp_path, 10, of(0, 1, 3) + of(1, 0))
    found = judge(tmp_path, RUN, {0: 5, 1: 2, 2: 0})
    assert (found.text, found.rows, found.exactly_once) == (EXACTLY_ONCE, 7, True)


def test_nothing_at_all(tmp_path: Path) -> None:
    """No message and no file is exactly once; a message and no file is not."""
    assert judge(tmp_path, RUN, {0: 0}).exactly_once
    assert judge(tmp_path, RUN, {0: 5}).text == "producer 0: 5 of 5 messages missing (sequence 0, 1, 2, …)"


def test_a_missing_message_is_named(tmp_path: Path) -> None:
    """Also where it is the last one."""
    write(tmp_path, 0, of(0, 0, 1, 3) + of(1, 0))
    found = judge(tmp_path, RUN, {0: 4, 1: 2})
    assert "producer 0: 1 of 4 messages missing (sequence 2)" in found.text
    assert "producer 1: 1 of 2 messages missing (sequence 1)" in found.text
    assert not found.exactly_once


def test_a_doubled_message_is_named(tmp_path: Path) -> None:
    """Within a batch, over batches, and 300 times."""
    write(tmp_path, 0, of(0, 0, 1, 1) + of(1, *[0] * 300))
    write(tmp_path, 1, of(0, 0))
    found = judge(tmp_path, RUN, {0: 2, 1: 1})
    assert "producer 0: 2 of 2 messages doubled (sequence 0, 1)" in found.text
    assert "producer 1: 1 of 1 messages doubled (sequence 0)" in found.text


def test_one_missing_and_one_double_do_not_cancel_out(tmp_path: Path) -> None:
    """The number of rows is right and the verdict is not fooled."""
    write(tmp_path, 0, of(0, 0, 2, 2))
    found = judge(tmp_path, RUN, {0: 3})
    assert found.rows == 3
    assert "missing" in found.text
    assert "doubled" in found.text


def test_rows_that_nobody_sent(tmp_path: Path) -> None:
    """Another run's, an unknown producer's, without a number, with one that is too high."""
    write(tmp_path, 0, of(0, 0, 7))
    write(tmp_path, 1, of(0, 0), run="r2")
    write(tmp_path, 2, [*of(5, 0), (0, None), (None, 3)])
    found = judge(tmp_path, RUN, {0: 1})
    assert "producer 0: 2 rows with a sequence number that was never sent" in found.text
    assert "3 rows are not of this run" in found.text


def test_a_producer_that_was_killed(tmp_path: Path) -> None:
    """What it had noted must be there; what it sent after that may be, once."""
    write(tmp_path, 0, of(0, *range(12)))
    assert not judge(tmp_path, RUN, {0: 10}).exactly_once
    found = judge(tmp_path, RUN, {0: 10}, {0: False})
    assert found.exactly_once
    assert found.to_json()[0]["unnoted"] == 2
    assert "missing" in judge(tmp_path, RUN, {0: 13}, {0: False}).text
    write(tmp_path, 1, of(0, 11))
    assert "doubled" in judge(tmp_path, RUN, {0: 10}, {0: False}).text


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    """It is named, and its messages are missing."""
    write(tmp_path, 0, of(0, 0))
    (tmp_path / "batch=0" / "torn.parquet").write_bytes(b"PAR1")
    assert "torn.parquet can't be read" in judge(tmp_path, RUN, {0: 1}).text


def test_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the rows fall into pieces, the counts are the same."""
    monkeypatch.setattr(verdict, "BATCH_ROWS", 3)
    write(tmp_path, 0, of(0, *range(50, 100), *range(50)) + of(1, *range(20)))
    assert judge(tmp_path, RUN, {0: 100, 1: 20}).exactly_once
    assert judge(tmp_path, RUN, {0: 101, 1: 20}).text == "producer 0: 1 of 101 messages missing (sequence 100)"
