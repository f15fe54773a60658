"""Readers in loops that do other things too: `poll` and `async for`.

They never block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.client.reader import Reader
from commitlog.errors import IllegalArgument
from commitlog.message import Message
from tests.builders.hand_made import HandMadeStore, small_store
from tests.fake_clock import SetClock

pytestmark = pytest.mark.usefixtures("look_each_time")

THERE = 200


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """100 messages of `orders` in each of lanes 0 and 1."""
    return small_store(tmp_path / "store", topics=("orders",))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """To its end, or to an error that says where it stands."""
    return asyncio.run(asyncio.wait_for(work, 100))


def places(messages: list[Message]) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in messages]


def add(store: HandMadeStore, count: int = 1) -> None:
    for _ in range(count):
        store.lane(0).append("orders", b"more")
    store.publish()


# ---- poll --------------------------------------------------------------------------------------


def test_the_first_poll_gives_what_came_since_the_reader_was_opened(tmp_path: Path) -> None:
    """Also from a lane that was not there when the reader was opened."""
    with commitlog.Store.open(tmp_path / "store") as store, commitlog.Reader(store.path, follow=True) as reader:
        store.producer().send("orders", b"first").wait("flushed", 60)
        message = reader.poll()
        assert message is not None
        assert message.value == b"first"


def test_poll_gives_what_next_gives(store: HandMadeStore) -> None:
    """In the same order; at the end of a reader that does not follow, None, again and again."""
    with Reader(store.path) as plain, Reader(store.path) as reader:
        given = list(iter(reader.poll, None))
        assert places(given) == places(list(plain))
        assert reader.poll(60) is None
        assert reader.poll() is None
        assert not reader.closed
    assert reader.poll(60) is None
    assert reader.closed


def test_poll_waits_as_long_as_it_is_told(store: HandMadeStore) -> None:
    """On a clock that a test turns: nothing else lets the time pass."""
    clock = SetClock()
    with Reader(store.path, start="latest", follow=True, clock=clock) as reader:
        began = clock.boot
        assert reader.poll(2.5) is None
        assert (clock.boot - began) / 1e9 == pytest.approx(2.5, abs=0.05)
        assert reader.poll(0) is None
        add(store, 3)
        assert [message.offset for message in iter(reader.poll, None)] == [100, 101, 102]


def test_poll_and_next_may_take_turns(store: HandMadeStore) -> None:
    """Together they give out each message once."""
    with Reader(store.path, follow=True) as reader:
        given = [message for _ in range(THERE // 2) for message in (next(reader), reader.poll(60)) if message]
        assert len(set(places(given))) == THERE
        assert reader.poll() is None


@pytest.mark.parametrize("timeout", [-1, "1", float("nan"), True, [1]])
def test_a_timeout_that_is_none(store: HandMadeStore, timeout: Any) -> None:
    """It is refused, and the reader goes on."""
    with Reader(store.path) as reader:
        with pytest.raises(IllegalArgument, match="timeout"):
            reader.poll(timeout)
        assert len(list(reader)) == THERE


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e300])
def test_no_limit(store: HandMadeStore, timeout: float | None) -> None:
    """Each means no limit; a reader that does not follow gives None at its end all the same."""
    with Reader(store.path) as reader:
        assert len(list(iter(lambda: reader.poll(timeout), None))) == THERE


# ---- async for ---------------------------------------------------------------------------------


def test_async_for_gives_what_for_gives(store: HandMadeStore) -> None:
    """The same messages in the same order."""

    async def read() -> list[Message]:
        with Reader(store.path) as reader:
            return [message async for message in reader]

    with Reader(store.path) as plain:
        assert places(run(read())) == places(list(plain))


def test_it_leaves_the_loop_to_others_while_it_waits(store: HandMadeStore) -> None:
    """They make the message that it waits for."""

    async def read() -> list[int]:
        async def later() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                add(store)

        with Reader(store.path, lanes={0}, start="latest", follow=True) as reader:
            task = asyncio.create_task(later())
            given = [(await anext(reader)).offset for _ in range(3)]
            await task
            return given

    assert run(read()) == [100, 101, 102]


def test_it_leaves_the_loop_to_others_while_there_is_always_more(store: HandMadeStore) -> None:
    """A backlog does not keep everybody else waiting until it is read."""

    async def read() -> list[int]:
        given = 0
        turns: list[int] = []

        async def other() -> None:
            while given < THERE:
                turns.append(given)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        with Reader(store.path) as reader:
            async for _ in reader:
                given += 1
        await task
        return turns

    assert len(set(run(read()))) >= 3


def test_a_cancelled_wait_loses_nothing(store: HandMadeStore) -> None:
    """Cancelled at every point where it can be; the next one gives the message."""

    async def read() -> list[Message]:
        given: list[Message] = []
        with Reader(store.path, follow=True) as reader:
            add(store, 50)
            for turns in range(10_000):
                task = asyncio.ensure_future(anext(reader))
                for _ in range(turns % 4):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    given.append(await task)
                except asyncio.CancelledError:
                    if len(given) == THERE + 50:
                        break
        return given

    given = places(run(read()))
    assert sorted(given) == sorted({(lane, offset) for lane in (0, 1) for offset in range(100 + 50 * (lane == 0))})


def test_wait_for_may_time_out_again_and_again(store: HandMadeStore) -> None:
    """A cancelled wait takes no message with it."""

    async def read() -> list[int]:
        given: list[int] = []
        with Reader(store.path, lanes={0}, start="latest", follow=True) as reader:
            while len(given) < 5:
                try:
                    given.append((await asyncio.wait_for(anext(reader), 0.001)).offset)
                except TimeoutError:
                    add(store)
        return given

    assert run(read()) == [100, 101, 102, 103, 104]


def test_a_close_ends_it(store: HandMadeStore) -> None:
    """By another task while it waits, and in its body."""

    async def read() -> tuple[int, int]:
        reader = Reader(store.path, follow=True)

        async def close() -> None:
            while reader.statistics().messages < THERE:
                await asyncio.sleep(0)
            reader.close()

        task = asyncio.create_task(close())
        waited = len([message async for message in reader])
        await task
        reader = Reader(store.path, follow=True)
        count = 0
        async for _ in reader:
            count += 1
            if count == 7:
                reader.close()
        return waited, count

    assert run(read()) == (THERE, 7)


def test_automatic_commits_of_one_that_waits(store: HandMadeStore) -> None:
    """As in any other loop: what is being worked on is not counted, what is done is."""

    async def read() -> list[dict[str, dict[int, int]]]:
        seen = []
        with Reader(store.path, name="billing", lanes={0}, auto_commit_seconds=0, follow=True) as reader:
            async for message in reader:
                seen.append(reader.committed())
                if message.offset == 99:
                    break
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader), 0.01)
            seen.append(reader.committed())
        return seen

    assert run(read()) == [{"orders": {0: offset}} for offset in range(101)]


def test_beside_a_producer(tmp_path: Path) -> None:
    """In one loop: receipts are awaited, and a reader has what they tell."""

    async def work() -> list[bytes]:
        with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
            producer = store.producer()
            with Reader(store.path, follow=True) as reader:

                async def send() -> None:
                    for number in range(20):
                        await producer.send("orders", b"%d" % number)

                task = asyncio.create_task(send())
                given = [(await anext(reader)).value for _ in range(20)]
                await task
                return given

    assert run(work()) == [b"%d" % number for number in range(20)]
