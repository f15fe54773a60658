"""An interrupt of a RemoteProducer doubles nothing, and keeps nothing from closing."""

from __future__ import annotations

import itertools

import pytest

import commitlog
from commitlog.remote import outbox
from tests.interrupts import interrupted
from tests.nightly import with_nightly


@pytest.mark.parametrize("call", with_nightly(["close"], ["send"]))
def test_each_place_of_a_call(store: commitlog.Store, url: str, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """What was sent arrives once, in order. A message whose `send` was interrupted may be there."""
    monkeypatch.setattr(outbox, "BATCH_MESSAGES", 1)
    for number in itertools.count(1):
        topic, sent = f"{call}-{number}", [b"first"]
        with commitlog.RemoteProducer(url) as producer:
            producer.send(topic, b"first")
            with interrupted(number) as interrupts:
                if call == "close":
                    producer.close()
                for value in (b"a", b"b") if call == "send" else ():
                    producer.send(topic, value)
                    sent.append(value)
            if call == "send":
                producer.send(topic, b"last").wait("flushed", 60)
                sent.append(b"last")
        with commitlog.Reader(store.path, topic) as reader:
            found = [message.value for message in reader]
        assert [value for value in found if value in sent] == sent
        assert len(found) == len(set(found))
        if interrupts.left > 0:
            return
