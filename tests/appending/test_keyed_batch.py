"""A batch with a key for each message is byte for byte what single sends make of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commitlog
from commitlog import errors
from tests.builders.timeless import without_times
from tests.faults.bench import bench
from tests.nightly import with_nightly

DICE = random.Random(3)
EQUAL = [DICE.randbytes(20) for _ in range(300)]
MIXED = [DICE.randbytes(DICE.randrange(90)) for _ in range(300)]
KEYS = [None if number % 7 == 0 else f"kéy {number**3}" for number in range(300)]
BODIES: dict[str, tuple[Any, list[bytes]]] = {
    "equal": (EQUAL, EQUAL),
    "mixed": (MIXED, MIXED),
    "numpy": (np.frombuffer(b"".join(EQUAL), np.uint8).reshape(300, 20), EQUAL),
    "empty": ([b""] * 300, [b""] * 300),
}


@pytest.mark.parametrize("crc", with_nightly([True], [False]))
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("more", [{}, {"tags": "new", "headers": {"a": "ü"}, "wait": False}], ids=["plain", "more"])
def test_it_is_what_single_sends_make(name: str, more: Any, crc: bool, tmp_path: Path) -> None:
    """But for the time. And the receipt knows every place."""
    given, bodies = BODIES[name]
    found: list[tuple[bytes, list[int]]] = []
    for way in ("batch", "single"):
        with bench(tmp_path / way, store={"record_crc": crc}) as made:
            producer = made.producer()
            producer.send("t", b"first")
            if way == "batch":
                receipt = producer.send_batch("t", given, keys=KEYS, **more)
                assert (receipt.offset, len(receipt)) == (1, 300)
                places = receipt.physical_offsets.tolist()
            else:
                pairs = zip(bodies, KEYS, strict=True)
                places = [producer.send("t", body, key=key, **more).physical_offset for body, key in pairs]
            producer.send("t", b"last", key="x")
            made.settle()
            log = made.supervisor.directory.lane_directory(0).segment_path(0).read_bytes()
            found.append((without_times(log, crc), places))
            with commitlog.Reader(made.path) as reader:
                keys = [message.key for message in reader]
            assert keys == [None, *KEYS, "x"]
    assert found[0] == found[1]


def test_wrong_keys_leave_nothing(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Wrong keys are an error that names the number of the key.

    They are too few, too many, given beside one key for all, of another type, or impossible to
    store.
    """
    with bench(tmp_path / "store") as made:
        producer: Any = made.producer()
        batch = producer.send_batch
        wrong: list[tuple[dict[str, Any], type[errors.CommitLogError], str]] = [
            ({"keys": ["a"]}, errors.IllegalMessage, "1 keys for 2 values"),
            ({"keys": ["a"] * 3}, errors.IllegalMessage, "3 keys for 2 values"),
            ({"keys": "ab"}, errors.IllegalMessage, "not str"),
            ({"keys": iter("ab")}, errors.IllegalMessage, "see also key="),
            ({"keys": ["a", "b"], "key": "c"}, errors.IllegalMessage, "both given"),
            ({"keys": ["a", 5]}, errors.IllegalProperty, "key 1 of the batch"),
            ({"keys": ["a", 0]}, errors.IllegalProperty, "key 1 of the batch"),
            ({"keys": [b"a", "b"]}, errors.IllegalProperty, "key 0 of the batch"),
            (
                {"keys": ["a", ""]},
                errors.IllegalProperty,
                "key 1 of the batch: key: readers drop an empty name or value",
            ),
            ({"key": ""}, errors.IllegalProperty, "key: readers drop an empty name or value; leave it out"),
            ({"tags": ""}, errors.IllegalProperty, "tags: readers drop an empty name or value"),
            ({"headers": {"h": ""}}, errors.IllegalProperty, "header 'h': readers drop an empty name or value"),
            ({"keys": ["a", "\x01"]}, errors.IllegalProperty, "key 1 of the batch"),
            ({"keys": ["a", "\ud800"]}, errors.IllegalProperty, "key 1 of the batch"),
            ({"keys": ["a", "x" * 40_000]}, errors.PropertiesTooLarge, "key 1 of the batch"),
            ({"keys": ["a", "x" * 17_000]}, errors.MessageTooLarge, "split the value"),
        ]
        for arguments, error, text in wrong:
            with subtests.test(str(arguments)[:50]):
                with pytest.raises(errors.CommitLogError, match=text) as raised:
                    batch("t", [b"one", b"two"], **arguments)
                assert type(raised.value) is error
                if "keys" not in arguments:
                    with pytest.raises(error, match=text):
                        producer.send("t", b"one", **arguments)

        class Text(str):
            """As numpy and others have it."""

        assert batch("t", [b"one", b"two"], keys=(Text("a"), None)).offset == 0
        assert len(batch("t", [], keys=[])) == 0
        made.settle()
        with commitlog.Reader(made.path) as reader:
            assert [(message.offset, message.key) for message in reader] == [(0, "a"), (1, None)]
