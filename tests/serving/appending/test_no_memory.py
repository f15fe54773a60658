"""A client that runs out of memory: what it has collected still arrives."""

from __future__ import annotations

import pytest

import commitlog
from commitlog.remote.append_stream import AppendStream
from tests.serving.appending.shared_store import messages


def test_a_thread_that_hears_without_memory(store: commitlog.Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads that stream's answers any more, so another stream sends the messages again."""
    read, failures = AppendStream.read, [MemoryError()]

    def read_without_memory(stream: AppendStream) -> bool:
        if failures:
            raise failures.pop()
        return read(stream)

    with commitlog.RemoteProducer(url) as producer:
        producer.send("t", b"a").wait(timeout=60)
        monkeypatch.setattr(AppendStream, "read", read_without_memory)
        producer.send("t", b"b").wait(timeout=60)  # its answer comes to the `read` of before
        producer.send("t", b"c").wait(timeout=60)
    assert not failures
    assert {m.value for m in messages(store)} == {b"a", b"b", b"c"}
