"""A receipt is an object with attributes. That it is made as a tuple does not show."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.errors import NotCopied
from tests.faults.bench import bench

LIKE_A_TUPLE: list[Callable[[Any], object]] = [
    len,
    iter,
    list,
    tuple,
    reversed,
    lambda receipt: receipt[0],
    lambda receipt: receipt[1:3],
    lambda receipt: "t" in receipt,
    lambda receipt: receipt + (1,),  # noqa: RUF005
    lambda receipt: (1,) + receipt,  # noqa: RUF005
    lambda receipt: receipt * 2,
    lambda receipt: 2 * receipt,
    lambda receipt: sorted([receipt, receipt]),
    lambda receipt: operator.lt((), receipt),
    lambda receipt: receipt >= (),
]


def test_it_does_nothing_that_a_tuple_does(tmp_path: Path) -> None:
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        for receipt in (producer.send("t", b"x"), producer.send_batch("t", [b"x", b"y"])):
            for use in LIKE_A_TUPLE:
                if use is len and isinstance(receipt, commitlog.BatchReceipt):
                    continue
                with pytest.raises(TypeError, match="Receipt"):
                    use(receipt)
            for method in ("count", "index"):
                assert not hasattr(receipt, method)


def test_it_equals_itself_only(tmp_path: Path) -> None:
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        first, second = producer.send("t", b"x"), producer.send("t", b"x")
        values: Any = (first._progress, "t", first.offset, first.physical_offset, first.end)
        assert first == first
        assert not operator.ne(first, first)
        assert first != second
        assert values != first
        assert first != values
        assert not operator.eq(values, first)
        assert {first, second, first} == {second, first}


def test_it_is_true_also_that_of_an_empty_batch(tmp_path: Path) -> None:
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        assert producer.send("t", b"x")
        empty = producer.send_batch("t", [])
        assert empty
        assert len(empty) == 0


def test_it_shows_its_place(tmp_path: Path) -> None:
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        producer.send("t", b"x")
        receipt = producer.send("t", b"y")
        shown = f"topic='t', partition=0, offset=1, physical_offset={receipt.physical_offset})"
        assert repr(receipt) == f"Receipt({shown}"
        assert repr(producer.send_batch("t", [b"x"])).startswith("BatchReceipt(topic='t', partition=0, offset=2, ")


def test_its_values_stay(tmp_path: Path) -> None:
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt: Any = producer.send("t", b"x")
        for name in ("topic", "partition", "offset", "other"):
            with pytest.raises(AttributeError):
                setattr(receipt, name, 1)


def test_a_copy_is_the_same_and_another_process_gets_none(tmp_path: Path) -> None:
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt = producer.send("t", b"x")
        assert copy.copy(receipt) is receipt
        assert copy.deepcopy([receipt])[0] is receipt
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(NotCopied, match="pass on its topic, partition and offset"):
                pickle.dumps(receipt, protocol)
