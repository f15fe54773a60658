"""A replica follows its store: the same bytes, the same consume queues, readable all the while."""

from __future__ import annotations

import commitlog
from tests.replicas.scene import Scene, await_copy, check_equal


def test_a_copy_has_the_same_bytes_and_the_same_consume_queues(scene: Scene) -> None:
    with scene.open() as store, scene.replica():
        first, second = store.producer(), store.producer()
        for number in range(3_000):
            first.send("orders", b"%d" % number * 20, tags="a")
            second.send("other", b"%d" % number * 30)
        first.flush()
        second.flush()
        await_copy(scene)
        check_equal(scene)


def test_a_message_is_replicated_when_the_copy_has_it(scene: Scene) -> None:
    with scene.open() as store, scene.replica():
        producer = store.producer()
        producer.send("orders", b"first")
        await_copy(scene)
        producer.send("orders", b"second").wait("replicated", timeout=60)
        with commitlog.Reader(scene.copy, topic="orders", follow=True) as reader:
            assert [message and message.value for message in (reader.poll(60), reader.poll(60))] == [
                b"first",
                b"second",
            ]
