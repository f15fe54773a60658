"""Producers whose disk does not keep up: an error, and nothing is dropped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import errors
from commitlog.status import PutMessageStatus
from tests.waiting import wait_until

SMALL: dict[str, Any] = {"store": {"segment_bytes": 1 << 16}}


def send_many(producer: commitlog.Producer, count: int, accepted: list[bytes]) -> None:
    for number in range(count):
        body = b"%d" % number + b"x" * 1000
        producer.send("t", body)
        accepted.append(body)


def accepts(producer: commitlog.Producer, body: bytes) -> bool:
    try:
        producer.send("t", body)
    except (errors.NoBufferAvailable, errors.AllocateTimeout):
        return False
    return True


def values(store: commitlog.Store) -> list[bytes]:
    with commitlog.Reader(store.path) as reader:
        return [message.value for message in reader]


def test_back_pressure_is_an_error_and_ends_with_its_cause(tmp_path: Path) -> None:
    """With the committer stopped, the buffers fill, and nothing is dropped.

    When the committer goes on, so does the producer.
    """
    config = {**SMALL, "producer": {"buffer_wait_ms": 1000}}
    with commitlog.Store.open(tmp_path / "store", config) as store:
        producer = store.producer()
        committer = int((store.path / "locks" / "committer").read_text())
        os.kill(committer, signal.SIGSTOP)
        accepted: list[bytes] = []
        with pytest.raises(errors.NoBufferAvailable, match="not accepted") as raised:
            send_many(producer, 1000, accepted)
        assert raised.value.status is PutMessageStatus.OS_PAGE_CACHE_BUSY
        assert len(accepted) > 100  # buffers of the next segments were there already
        os.kill(committer, signal.SIGCONT)
        wait_until(lambda: accepts(producer, b"at last"), "a free buffer")
        producer.flush()
        assert values(store) == [*accepted, b"at last"]


def test_without_a_free_buffer_the_segment_may_be_written_directly(tmp_path: Path) -> None:
    """With the flusher stopped no buffer comes free, and `write_direct` goes on in the file.

    That is counted, and all is one log.
    """
    config = {**SMALL, "producer": {"when_no_buffer": "write_direct", "segment_wait_ms": 2000}}
    with commitlog.Store.open(tmp_path / "store", config) as store:
        producer = store.producer()
        flusher = int((store.path / "locks" / "flusher").read_text())
        producer.send("t", b"first").wait("flushed", 60)
        accepted: list[bytes] = [b"first"]
        os.kill(flusher, signal.SIGSTOP)
        with pytest.raises(errors.AllocateTimeout) as raised:
            send_many(producer, 1000, accepted)
        assert raised.value.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        os.kill(flusher, signal.SIGCONT)
        producer.flush()
        for _ in range(300):
            wait_until(lambda: accepts(producer, b"y" * 1000), "a segment")
        accepted += [b"y" * 1000] * 300
        producer.flush()
        assert values(store) == accepted
