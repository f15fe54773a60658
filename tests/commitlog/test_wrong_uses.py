"""Wrong calls end as an error of ours, by name and with a hint.

Nothing is done, and everything stays usable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog import errors
from commitlog.cli.app import app
from commitlog.config import Config, StoreConfig
from commitlog.config_file import load_config
from commitlog.inspecting.log_root import find_roots
from tests.command_line import run
from tests.faults.bench import bench

WRONG_TIMES: list[Any] = [True, math.nan, -1, -math.inf, "5", b"5", [5], 1j]
NO_LIMITS: list[Any] = [math.inf, 10**400, 1e300, np.float32(1)]

Wrong = list[tuple[str, Callable[[], object], type[errors.CommitLogError]]]


def refused(subtests: pytest.Subtests, wrong: Wrong) -> None:
    for what, call, error in wrong:
        with subtests.test(what):
            with pytest.raises(errors.CommitLogError) as raised:
                call()
            assert type(raised.value) is error, what
            assert "\n" not in str(raised.value)
            assert str(raised.value).isprintable()


def test_wrong_messages(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Of a wrong type, or beyond what a record has place for. The next message takes the offset."""
    with bench(tmp_path / "store") as made:
        send: Any = made.producer().send
        batch: Any = made.producers[0].send_batch
        wrong: Wrong = [
            ("topic None", lambda: send(None, b""), errors.IllegalTopic),
            ("topic bytes", lambda: send(b"t", b""), errors.IllegalTopic),
            ("topic list", lambda: send(["t"], b""), errors.IllegalTopic),
            ("topic dict of a batch", lambda: batch({}, [b""]), errors.IllegalTopic),
            ("value str", lambda: send("t", "x"), errors.IllegalMessage),
            ("value None", lambda: send("t", None), errors.IllegalMessage),
            ("value int", lambda: send("t", 5), errors.IllegalMessage),
            ("values str", lambda: batch("t", "x"), errors.IllegalMessage),
            ("values of str", lambda: batch("t", [b"", "x"]), errors.IllegalMessage),
            ("values of 16 bits", lambda: batch("t", np.zeros((2, 2), np.int16)), errors.IllegalMessage),
            ("key int", lambda: send("t", b"", key=5), errors.IllegalProperty),
            ("key 0", lambda: send("t", b"", key=0), errors.IllegalProperty),
            ("key b''", lambda: send("t", b"", key=b""), errors.IllegalProperty),
            ("key surrogate", lambda: send("t", b"", key="\ud800"), errors.IllegalProperty),
            ("tags list", lambda: send("t", b"", tags=["a"]), errors.IllegalProperty),
            ("tags False", lambda: send("t", b"", tags=False), errors.IllegalProperty),
            ("headers list", lambda: send("t", b"", headers=["a"]), errors.IllegalProperty),
            ("headers str", lambda: batch("t", [b""], headers="a"), errors.IllegalProperty),
            ("header int", lambda: send("t", b"", headers={"a": 1}), errors.IllegalProperty),
            ("flag -1", lambda: send("t", b"", flag=-1), errors.IllegalMessage),
            ("flag 2**31", lambda: send("t", b"", flag=1 << 31), errors.IllegalMessage),
            ("flag str", lambda: send("t", b"", flag="x"), errors.IllegalMessage),
            ("born -1", lambda: send("t", b"", born_timestamp=-1), errors.IllegalMessage),
            ("born 2**63", lambda: send("t", b"", born_timestamp=1 << 63), errors.IllegalMessage),
            ("born float", lambda: send("t", b"", born_timestamp=1.5), errors.IllegalMessage),
        ]
        refused(subtests, wrong)
        for _, call, _ in wrong:
            with pytest.raises((TypeError, ValueError, errors.RecordError)) as raised:
                call()
            assert getattr(raised.value, "status", None) is commitlog.PutMessageStatus.MESSAGE_ILLEGAL
        assert send("t", b"fine", flag=(1 << 31) - 1, born_timestamp=np.int64(0)).offset == 0
        made.settle()
        assert made.durable_bodies() == [b"fine"]


def test_wrong_waits(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Unknown levels, limits that are no times, callbacks that can't be called.

    Infinity means no limit.
    """
    with bench(tmp_path / "store") as made:
        producer = made.producer()
        receipt: Any = producer.send("t", b"")
        for state in ("not yet flushed", "flushed"):
            wrong: Wrong = [
                (f"level x, {state}", lambda: receipt.wait("x"), errors.IllegalArgument),
                (f"level 5, {state}", lambda: receipt.wait(5), errors.IllegalArgument),
                (f"level list, {state}", lambda: receipt.wait([]), errors.IllegalArgument),
                (f"done x, {state}", lambda: receipt.done("x"), errors.IllegalArgument),
                (f"callback None, {state}", lambda: receipt.add_callback(None), errors.IllegalArgument),
                (f"callback at x, {state}", lambda: receipt.add_callback(print, "x"), errors.IllegalArgument),
                (f"callback in x, {state}", lambda: receipt.add_callback(print, timeout="x"), errors.IllegalArgument),
            ]
            for timeout in WRONG_TIMES:
                wrong += [
                    (f"wait {timeout}, {state}", lambda t=timeout: receipt.wait(timeout=t), errors.IllegalArgument),  # type: ignore[misc]
                    (f"flush {timeout}, {state}", lambda t=timeout: producer.flush(timeout=t), errors.IllegalArgument),  # type: ignore[misc]
                ]
            refused(subtests, wrong)
            made.settle()
        for timeout in NO_LIMITS:
            assert receipt.wait(timeout=timeout).name == "PUT_OK"
            producer.flush(timeout=timeout)
        with pytest.raises(errors.IllegalArgument, match="timeout=5"):
            receipt.wait(5)


def test_wrong_paths(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A NUL, half a surrogate pair, no path at all, the URL of a served store: at every door."""
    refused_by_name: dict[Any, type[errors.CommitLogError]] = {
        f"{tmp_path}/a\0b": errors.StoreRefused,
        f"{tmp_path}/a\ud800": errors.StoreRefused,
        5: errors.IllegalArgument,
        None: errors.IllegalArgument,
        "commitlog+tls://host:4433/events": errors.IllegalArgument,
    }
    doors: list[Callable[[Any], object]] = [commitlog.Store.open, commitlog.Producer, commitlog.Reader, find_roots]
    refused(
        subtests,
        [
            (f"{door.__qualname__}({path!r})", lambda door=door, path=path: door(path), error)  # type: ignore[misc]
            for path, error in refused_by_name.items()
            for door in doors
            if not (door is commitlog.Reader and "://" in str(path))  # it reads served stores, too
        ],
    )
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(errors.StoreRefused, match="UTF-8"):
        commitlog.Store.open(odd)
    with pytest.raises(errors.StoreNotFound):
        commitlog.Reader(odd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "health", "readers", "verify"])
def test_a_url_where_only_a_directory_will_do(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no name of a directory to make, and no directory that is missing."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [command, "commitlog://localhost/events"])
    assert "this takes a directory of this machine" in done.output + str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "stat", "cat", "verify", "destroy"])
def test_a_path_that_is_no_text_on_the_command_line(command: str, tmp_path: Path) -> None:
    """One line that says what is wrong, and no traceback."""
    done = run(command, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert done.returncode == 1
    assert len(done.stderr.decode().splitlines()) == 1, done.stderr.decode()


def test_a_path_that_is_none_in_spark() -> None:
    """The options are taken as text; the door behind them refuses."""
    from commitlog.planning.options import parse_options

    with pytest.raises(errors.StoreRefused):
        commitlog.Reader(parse_options({"path": "/tmp/a\0b", "subscribe": "t"}).path)


def test_wrong_configurations(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Of a wrong shape; each is a ConfigError before anything starts."""
    wrong: list[Any] = [
        {1: 2},
        {"store": {1: 2}},
        {"store": {"segment_bytes": object()}},
        {"store": {"segment_bytes": 1 << 70}},
        {"store": 5},
        {"store": [1]},
        {"stoer": {}},
        {"store": {"max_lanes": math.nan}},
        {"store": {"write_path": "\ud800"}},
        5,
        ["a"],
        b"x",
        "a\0b",
        "\ud800",
        Config(store=5),  # type: ignore[arg-type]
        Config(store=StoreConfig(max_lanes=0)),
    ]
    refused(subtests, [(f"{config!a}", lambda c=config: load_config(c), errors.ConfigError) for config in wrong])  # type: ignore[misc]
    with pytest.raises(errors.ConfigError):
        commitlog.Store.open(tmp_path / "store", {1: 2})  # type: ignore[dict-item]
    assert not (tmp_path / "store").exists()


def test_wrong_doors(tmp_path: Path) -> None:
    """A store is not made by its class, and a reader reads as far as there is a name for."""
    for call in (lambda: commitlog.Store("x"), lambda: commitlog.Store()):
        with pytest.raises(errors.IllegalArgument, match=r"Store\.open"):
            call()
    reader: Any = commitlog.Reader
    with bench(tmp_path / "store") as made, pytest.raises(errors.IllegalTopic, match=r"topic 'a\\nb': only") as raised:
        reader(made.path, topic=["a\nb", "c"])
    assert str(raised.value).isprintable()
    with pytest.raises(errors.IllegalArgument, match="isolation"):
        reader(tmp_path, isolation="x")
    wrong: list[Any] = [5, [5], [["t"]], b"t", [None], "", ["t", ""], [], set(), ()]
    for topic in wrong:
        with pytest.raises(errors.IllegalTopic, match="None for all"):
            reader(tmp_path, topic=topic)


def test_wrong_commits(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Only a message can be committed, and an interval that is no time begins nothing.

    The reader stays usable.
    """
    with bench(tmp_path / "store") as made:
        receipt = made.producer().send("t", b"x")
        made.settle()
        reader: Any = commitlog.Reader
        path = tmp_path / "store"
        with reader(path, name="billing") as named:
            message = next(named)
            wrong: Wrong = [
                ("commit str", lambda: named.commit("x"), errors.IllegalArgument),
                ("commit offset", lambda: named.commit(message.offset), errors.IllegalArgument),
                ("commit receipt", lambda: named.commit(receipt), errors.IllegalArgument),
            ]
            wrong += [
                (
                    f"auto_commit_seconds={seconds!r:.20}",
                    lambda s=seconds: reader(path, name="b", auto_commit_seconds=s),  # type: ignore[misc]
                    errors.OptionError,
                )
                for seconds in [*WRONG_TIMES, math.inf]
            ]
            refused(subtests, wrong)
            named.commit(message)
            assert named.committed() == {"t": {0: 1}}
        for seconds in (1e300, 10**400):
            reader(path, name="b", auto_commit_seconds=seconds).close()
