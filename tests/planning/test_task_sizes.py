"""Tasks hold every row once, in order, sized by work; limits are shared out by backlog."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.columns.read_plan import Slice
from commitlog.planning.task_sizes import BYTES_PER_TASK, ROWS_PER_TASK, SLACK, SLACK_OF_WAVES, Work, plan, share_out


def work(rows: int, record_bytes: float = 100, lane: int = 0, start: int = 5) -> Work:
    return Work(Slice("orders", lane, start, start + rows, -1, 0), record_bytes)


@settings(deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 600_000), st.floats(91, 4e5)), max_size=10),
    min_tasks=st.none() | st.integers(1, 50),
    max_rows=st.none() | st.integers(20_000, 10**7),
    cores=st.integers(1, 8),
)
def test_every_row_is_in_one_task(
    ranges: list[tuple[int, float]], min_tasks: int | None, max_rows: int | None, cores: int
) -> None:
    given_work = [work(rows, size, lane) for lane, (rows, size) in enumerate(ranges)]
    tasks = plan(given_work, min_tasks, max_rows, cores)
    rows = sum(rows for rows, _ in ranges)
    reached: dict[int, int] = {}
    for task in tasks:
        for piece in task:
            assert piece.start == reached.get(piece.lane, 5) < piece.end
            reached[piece.lane] = piece.end
        assert not max_rows or sum(piece.rows for piece in task) <= max_rows
        assert sum(piece.rows for piece in task) <= ROWS_PER_TASK * (1 + (SLACK if cores == 1 else SLACK_OF_WAVES)) + 1
    assert reached == {lane: 5 + rows for lane, (rows, _) in enumerate(ranges) if rows}
    assert len(tasks) >= min(min_tasks or 0, rows)


def test_small_ranges_share_a_task() -> None:
    assert len(plan([work(1000, lane=lane) for lane in range(64)])) == 1


def test_large_ranges_are_cut_by_rows_or_bytes() -> None:
    assert len(plan([work(1_000_000)])) == 4
    per_task = [sum(piece.rows for piece in task) for task in plan([work(1000, BYTES_PER_TASK / 10)])]
    assert max(per_task) <= 11


def test_tasks_are_even() -> None:
    sizes = [sum(piece.rows for piece in task) for task in plan([work(300_000)])]
    assert len(sizes) == 2
    assert max(sizes) < 1.1 * min(sizes)


def test_all_cores_work_to_the_end() -> None:
    """Five tasks on two cores would take three waves, the last of one task."""
    for rows in range(100_000, 5_000_000, 70_000):
        sizes = [sum(piece.rows for piece in task) for task in plan([work(rows)], cores=2)]
        assert len(sizes) == 1 or len(sizes) % 2 == 0
        assert max(sizes) < 1.1 * min(sizes)
    assert len(plan([work(600_000, lane=0), work(600_000, lane=1)], cores=2)) == 4
    assert len(plan([work(1_200_000)], max_rows=240_000, cores=2)) == 5


def test_nothing_to_read() -> None:
    assert plan([]) == plan([work(0)], 5) == []


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), st.integers(0, 10**9)), st.integers(1, 10**9)
)
def test_shares(backlog: dict[tuple[str, int], int], limit: int) -> None:
    shares = share_out(backlog, limit)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 < rows <= backlog[queue] for queue, rows in shares.items())


def test_a_small_backlog_is_not_starved() -> None:
    assert share_out({("a", 0): 10**6, ("a", 1): 1}, 1000) == {("a", 0): 999, ("a", 1): 1}
