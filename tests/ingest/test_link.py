"""The socket between the job and one of its processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from commitlog.ingest.link import Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    """The job's end and the process's."""
    ours, theirs = (Link(end) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_the_last_words_of_a_process_are_heard(ends: tuple[Link, Link]) -> None:
    """Also where the job has spoken to the process after its end."""
    job, process = ends
    process.send({"event": "failed", "name": "IngestError", "text": "no Java"})
    process.close()
    job.send({"do": "read", "place": "/a/store"})
    assert job.receive(0) == [{"event": "failed", "name": "IngestError", "text": "no Java"}]
    assert not job.closed
    assert job.receive(0) == []
    assert job.closed


def test_messages_that_come_together_are_all_heard(ends: tuple[Link, Link]) -> None:
    job, process = ends
    for word in ("warm up", "go", "stop"):
        job.send({"do": word})
    job.close()
    assert process.receive_one() == {"do": "warm up"}
    assert process.receive_one() == {"do": "go"}
    assert process.receive(0) == [{"do": "stop"}]
    with pytest.raises(EOFError):
        process.receive_one()
    assert process.closed
