"""Hostile bytes: whatever a log holds, the native core reads and writes within what was lent to it.

A build with AddressSanitizer sees every access outside. CONTRIBUTING says how to run this file with
one: `python -m tests.native.test_hostile CASES SEED`.
"""

from __future__ import annotations

import contextlib
import random
import sys

import numpy as np
import pytest

from commitlog.native import core
from commitlog.record.host import Host
from commitlog.record.properties import encode_properties
from commitlog.record.record import RecordEncoder
from commitlog.record.record_layout import RECORD_BYTES_MIN

_LENGTHS = (0, 68, 84, 88, 96, 100, 108, 112)
"""Where numbers are that say how long something is, from a record's start."""
_NUMBERS = (
    b"\x00" * 4,
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x5c",
    b"\x00\x00\x7f\xff",
)


def make_logs(chance: random.Random) -> list[bytes]:
    """Good logs of a few records each: all hosts, both versions, with and without the CRC."""
    hosts = [Host.of("127.0.0.1", 1), Host.of("::1", 2)]
    logs = []
    for number in range(64):
        encoder = RecordEncoder(0, hosts[number & 1], hosts[number >> 1 & 1], bool(number & 4))
        log = b""
        for offset in range(number % 5 + 1):
            topic = b"t" * chance.choice([1, 5, 127, 128, 255])
            properties = encode_properties("k", chance.choice([None, "tag"]), {"a": "b"}, append_crc=encoder.append_crc)
            body = chance.randbytes(chance.choice([0, 1, 7, 100]))
            log += encoder.encode(topic, body, properties, offset, len(log), 5, 6)
        logs.append(log)
    return logs


def damaged(log: bytes, chance: random.Random) -> bytes:
    """A log with a few wrong bytes or lengths, and often a wrong end."""
    found = bytearray(log)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(found))
        if chance.random() < 0.5:
            found[at] = chance.randrange(256)
        else:
            at = min(chance.choice(_LENGTHS) + chance.choice((0, at)), len(found) - 4)
            found[at : at + 4] = chance.choice(_NUMBERS)
    return bytes(found[: chance.randrange(len(found) + 1)] if chance.random() < 0.3 else found)


def check(cases: int, seed: int) -> None:
    """Gives the core so many damaged logs, each by `scan`, and now and then by the other calls."""
    assert core is not None
    chance = random.Random(seed)
    logs = make_logs(chance)
    longest = max(map(len, logs))
    most = longest // RECORD_BYTES_MIN + 1
    columns = np.empty((15, most), np.int64).view(np.uint8)
    for case in range(cases):
        data = damaged(chance.choice(logs), chance)
        demands = (0, chance.choice((None, 0)), bool(case & 1), bool(case & 2))
        count, where, bad, _ = core.scan(data, 0, len(data), len(data), demands, most, columns)
        assert 0 <= count <= most
        assert where + bad <= len(data)
        if case % 16 == 0:
            places = np.array([chance.randrange(-9, len(data) + 9) for _ in range(4)], np.int64)
            sizes = np.array([chance.choice((-1, 92, 300, 1 << 62, len(data))) for _ in range(4)], np.int64)
            core.tabulate(data, places, sizes, demands, columns)
            out = np.empty(max(len(data), 1), np.uint8)
            place = chance.choice((0, 1, -(1 << 63))), 0, chance.choice((0, 0x35))
            messages, reached, _ = core.follow(data, 0, len(data) + case, place, {"t": 0, "t" * 5: 1 << 62}, None)
            assert len(messages) * RECORD_BYTES_MIN <= reached <= len(data)
            with contextlib.suppress(ValueError):  # a place is outside, and it says so
                core.take(data, places, places + sizes % 50, out, np.empty(20, np.uint8))


@pytest.mark.skipif(core is None, reason="there is no native core")
def test_hostile_bytes() -> None:
    check(20_000, seed=17)


if __name__ == "__main__":
    check(int(sys.argv[1]), int(sys.argv[2]))
