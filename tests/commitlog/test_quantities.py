"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from commitlog.text.quantities import bytes_of, counted, nanoseconds_of, seconds_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64KiB", 65536),
        ("64 KiB", 65536),
        ("64K", 65536),
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("1.5GiB", 3 << 29),
        ("64MiB", 1 << 26),
        ("2T", 2 << 40),
        ("10B", 10),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1,5GiB", "64mib", "64 Mi", "0.3B", "1.3", "1_000", "9" * 40])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        bytes_of(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("12ms", 0.012),
        ("30s", 30),
        ("10m", 600),
        ("10min", 600),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172_800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert nanoseconds_of(text) == round(seconds * 1e9)


def test_a_number_without_a_unit_is_seconds_only_where_that_is_said() -> None:
    assert seconds_of("90") == 90
    assert seconds_of("0.5") == 0.5
    with pytest.raises(ValueError, match="a number and a unit"):
        nanoseconds_of("90")


@pytest.mark.parametrize("text", ["", "m", "-1s", "1 hour", "1,5h", "1h30", "1.h", "10M"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (12_345, "12,345 messages")]
)
def test_one_is_not_many(number: int, text: str) -> None:
    assert counted(number, "message") == text
