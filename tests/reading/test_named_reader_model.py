"""Reads, commits, stops and new messages in any order.

Nothing is passed over, and a reader begins at what was committed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitlog.client.reader import Reader
from commitlog.message import Message
from commitlog.reading import topic_index
from tests.builders.hand_made import HandMadeStore, small_store
from tests.fake_clock import SetClock

LANES, TOPICS = (0, 1), ("orders", "other")

Queue = tuple[str, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 30)),
        st.tuples(st.just("read batch"), st.integers(1, 30)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("commit one"), st.integers(0, 100)),
        st.tuples(st.just("close"), st.just(0)),
        st.tuples(st.just("forget"), st.just(0)),
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("pass"), st.integers(1, 20)),
    ),
    max_size=25,
)


class Model:
    """What a reader of the name has to do.

    For each queue, `next` is what it gives out next, and `committed` is where another reader
    begins.
    """

    def __init__(self, store: HandMadeStore, automatic: float | None) -> None:
        self.store, self.automatic, self.clock = store, automatic, SetClock()
        self.committed: dict[Queue, int] = {}
        self.next: dict[Queue, int] = {}
        self.hand: list[Message] = []
        self.open()

    def open(self) -> None:
        self.reader = Reader(
            self.store.path, name="billing", follow=True, auto_commit_seconds=self.automatic, clock=self.clock
        )
        self.next = dict(self.committed)
        self.hand = []
        self.check_committed()

    def read(self, count: int) -> None:
        for _ in range(count):
            message = self.reader.poll()
            if message is None:
                ends = {(topic, lane): self.store.lane(lane).next_offsets[topic] for topic in TOPICS for lane in LANES}
                assert {queue: self.next.get(queue, 0) for queue in ends} == ends
                break
            self.take(message)
        if self.automatic is not None:  # whenever that was: never more than what was given out before the last
            self.check_automatic(self.hand[:-1] if message is not None else self.hand)

    def read_batch(self, most: int) -> None:
        batch = next(self.reader.batches(most, timeout=0))
        assert len(batch) <= most
        if self.automatic is not None:
            self.check_automatic(self.hand)
        for message in batch:
            self.take(message)

    def take(self, message: Message) -> None:
        queue = message.topic, message.partition
        assert message.offset == self.next.get(queue, 0), "something was passed over, or came twice"
        self.next[queue] = message.offset + 1
        self.hand.append(message)

    def check_automatic(self, done: list[Message]) -> None:
        most = dict(self.committed)
        for message in done:
            queue = message.topic, message.partition
            most[queue] = max(most.get(queue, 0), message.offset + 1)
        for queue, offset in self.found().items():
            assert self.committed.get(queue, 0) <= offset <= most.get(queue, 0)
            self.committed[queue] = offset

    def commit(self, _: int) -> None:
        self.reader.commit()
        self.committed = {queue: max(self.next[queue], self.committed.get(queue, 0)) for queue in self.next}
        self.check_committed()

    def commit_one(self, number: int) -> None:
        if self.hand:
            message = self.hand[number % len(self.hand)]
            self.reader.commit(message)
            queue = message.topic, message.partition
            self.committed[queue] = max(message.offset + 1, self.committed.get(queue, 0))
            self.check_committed()

    def close(self, _: int) -> None:
        self.reader.close()
        if self.automatic is not None:
            self.check_automatic(self.hand)
        self.open()

    def forget(self, _: int) -> None:
        """A reader that was killed: what it had not written is not there."""
        position = self.reader._position
        assert position is not None
        position._every_ns = None
        self.reader.close()
        self.open()

    def add(self, count: int) -> None:
        for number in range(count):
            self.store.lane(number % 2).append(TOPICS[number // 2 % 2], b"more")
        self.store.publish()

    def found(self) -> dict[Queue, int]:
        return {
            (topic, lane): offset for topic, lanes in self.reader.committed().items() for lane, offset in lanes.items()
        }

    def check_committed(self) -> None:
        found = self.found()
        assert all(found.get(queue, 0) == offset for queue, offset in self.committed.items())


@settings(max_examples=40)
@example(steps=[("read", 40), ("commit", 0), ("close", 0), ("add", 1)], automatic=None)  # came between open and poll
@given(steps=STEPS, automatic=st.sampled_from([None, 0, 10.0]))
def test_at_least_once(steps: list[tuple[str, int]], automatic: float | None) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(topic_index, "STOPPED_REREAD_NS", 0)
        store = small_store(Path(directory) / "store", rows=10, topics=TOPICS)
        model = Model(store, automatic)
        actions: dict[str, Any] = {
            "read": model.read,
            "read batch": model.read_batch,
            "commit": model.commit,
            "commit one": model.commit_one,
            "close": model.close,
            "forget": model.forget,
            "add": model.add,
            "pass": model.clock.pass_seconds,
        }
        try:
            for name, value in steps:
                actions[name](value)
            model.read(1_000)  # whatever came before, the rest comes
        finally:
            model.reader.close()
