"""What is said to somebody who is in a hurry: the way out, on one line, and no false alarm."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.errors import IllegalProperty, IllegalRow
from commitlog.opening.stray_pools import StrayPool, said_of_strays
from tests.builders.hand_made import HandMadeStore, small_store
from tests.command_line import run
from tests.nightly import with_nightly

SMALL = {"store": {"segment_bytes": 1 << 16}}


def test_a_key_is_text(tmp_path: Path) -> None:
    wrong: Any
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        for wrong in (b"k", bytearray(b"k"), memoryview(b"k")):
            with pytest.raises(IllegalProperty, match=r"a key is text, not (byte|memory).*: decode it"):
                producer.send("t", b"", key=wrong)
        wrong = [3]
        with pytest.raises(IllegalProperty, match="a key is text, not int: use str"):
            producer.send_batch("t", [b""], keys=wrong)


def test_a_key_of_rows_and_a_name_of_a_column_are_text(tmp_path: Path) -> None:
    wrong: Any
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        store.create_topic("t", schema="id INT")
        for wrong, way in ((b"k", "decode it"), (3, "use str")):
            with pytest.raises(IllegalProperty, match=f"a key is text, not .*: {way}"):
                producer.send_rows("t", [{"id": 1}], key=wrong)
            with pytest.raises(
                IllegalRow, match=f"row 0: there is no column {wrong!r}: a column's name is text, so {way}"
            ):
                producer.send_rows("t", [{wrong: 1}])


def test_a_time_without_a_zone(tmp_path: Path) -> None:
    """pandas makes such times. Each way in names what gives them a zone."""
    pandas = pytest.importorskip("pandas")
    naive = pandas.Timestamp("2026-01-01")
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        store.create_topic("times", schema="at TIMESTAMP")
        for rows in ([{"at": naive}], pandas.DataFrame({"at": [naive]})):
            with pytest.raises(IllegalRow, match="tz_localize"):
                producer.send_rows("times", rows)
        producer.send_rows(
            "times", pandas.DataFrame({"at": [naive]}).assign(at=lambda x: x["at"].dt.tz_localize("UTC"))
        )


def test_logs_have_a_zone(tmp_path: Path) -> None:
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    time = re.match(r"\S+ \S+", run("logs", tmp_path / "store").stdout.decode())
    assert time
    assert datetime.fromisoformat(time[0]).tzinfo is not None


@pytest.mark.parametrize("command", with_nightly(["cat"], ["dump"]))
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, command: str) -> None:
    """As in `commitlog dump STORE | head -1`."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 20)
    for number in range(1500):  # more than a pipe holds
        store.lane(0).append("t", b"%d" % number * 100)
    store.publish()
    words = [sys.executable, "-m", "commitlog.cli", command, str(store.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_question_that_nobody_answers(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store").path
    done = run("destroy", store)
    assert done.returncode == 2
    assert b"nobody has answered the question; --yes" in done.stderr
    assert b"Invalid value" not in done.stderr


def test_stray_pools_are_one_line() -> None:
    pools = [StrayPool(Path(f"/dev/shm/{n}"), Path(f"/x/{n}"), 1000, n, is_replaced=False) for n in range(3)]
    (line,) = said_of_strays(pools)
    assert line.startswith("3 pools take 3,000 bytes of shared memory, and their stores are gone, 3 bytes in them")
    assert said_of_strays(pools[:1]) == [str(pools[0])]
    assert said_of_strays([]) == []
