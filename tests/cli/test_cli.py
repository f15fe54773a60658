"""The command line as a user types it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog import native
from commitlog.cli.app import COMMANDS, app
from commitlog.config_file import load_config
from tests.builders.hand_made import HandMadeStore
from tests.builders.killed import kill_store
from tests.command_line import run, run_process
from tests.crash.scene import is_running, pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until

SMALL = "[store]\nsegment_bytes = 65536\n"
README = Path(__file__).parents[2] / "README.md"
CONFIGS = Path(__file__).parents[2] / "configs"


@contextlib.contextmanager
def running(store: Path, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`commitlog run`, ready."""
    command = [sys.executable, "-m", "commitlog.cli", "run", str(store), "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().startswith(b"running ")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def test_interrupted_while_it_is_loaded(tmp_path: Path) -> None:
    """As if Ctrl-C came while typer is imported: no traceback."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "commitlog.cli", "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_little_is_loaded_before_an_interrupt_is_caught() -> None:
    """Imports that take long, such as that of typing, are made later.

    During such an import, a Ctrl-C would show a traceback.
    """
    code = "import sys; before = set(sys.modules); import commitlog.cli; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"typing", "re", "pathlib", "dataclasses", "commitlog.errors", "typer", "numpy"}.isdisjoint(loaded)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store that `commitlog run` keeps; `commitlog produce` has sent five lines to it."""
    directory = tmp_path_factory.mktemp("live")
    (directory / "small.toml").write_text(SMALL)
    store = directory / "store"
    with running(store, directory / "small.toml"):
        done = run_process("produce", store, "lines", "--key", "k", given=b"one\ntwo\n\xff\n\nlast")
        assert (done.returncode, b"5 messages" in done.stderr) == (0, True)
        yield store


def test_cat_of_a_store_that_runs(live: Path) -> None:
    assert run("cat", live).stdout == b"one\ntwo\n\xff\n\nlast\n"


def test_cat_as_json(live: Path) -> None:
    """A value that is no text is base64."""
    rows = [orjson.loads(row) for row in run("cat", live, "--format", "json", "--from", "last 3").stdout.splitlines()]
    found = [(row["offset"], row["key"], row.get("value", row.get("value_base64"))) for row in rows]
    assert found == [(2, "k", "/w=="), (3, "k", ""), (4, "k", "last")]


def test_stat_of_a_store_that_runs(live: Path) -> None:
    facts = orjson.loads(run("stat", live, "--json").stdout)
    assert facts["running"] is True
    assert facts["lanes"][0]["topics"] == {"lines": [0, 5]}
    assert {stage["stage"] for stage in facts["stages"]} == {"committer", "flusher", "allocator", "dispatcher"}


def test_which_core_runs_is_said(live: Path) -> None:
    """By `stat`, and in the log of a stage."""
    assert orjson.loads(run("stat", live, "--json").stdout)["core"] == native.description
    assert f"core here: {native.description}" in run("stat", live).stdout.decode().splitlines()
    assert f", core: {native.description}" in (live / "logs" / "flusher.log").read_text().splitlines()[0]


def test_a_store_that_runs_is_not_run_again_nor_destroyed(live: Path) -> None:
    assert b"StoreRunning" in run("run", live).stderr
    assert run("destroy", live, "--yes").returncode == 1
    assert (live / "store.json").exists()


def test_run_that_is_interrupted_ends_well(tmp_path: Path, config: Path) -> None:
    """Then the store is stopped, which is no error for `stat`."""
    with running(tmp_path / "store", config) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    done = run("stat", tmp_path / "store", "--json")
    assert (done.returncode, orjson.loads(done.stdout)["running"]) == (0, False)


@pytest.mark.parametrize(
    ("options", "given", "code", "stays"), [([], b"n\n", 1, True), ([], b"", 2, True), (["--yes"], b"", 0, False)]
)
def test_destroy_asks(store: HandMadeStore, options: list[str], given: bytes, code: int, stays: bool) -> None:
    """Without an answer it says which option stands for one."""
    done = run("destroy", store.path, *options, given=given)
    assert (done.returncode, store.path.exists()) == (code, stays)
    assert (b"--yes" in done.stderr) == (code == 2)


def test_destroy_says_what_can_not_be_removed(store: HandMadeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is gone by then, so it also says how the rest of it goes."""
    unlink = os.unlink

    def refuse(path: str, **options: Any) -> None:
        if Path(path).name == f"{0:020d}":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        done = run("destroy", store.path, "--yes")
    assert done.returncode == 1
    assert f"rm -r {store.path}".encode() in done.stderr
    assert not (store.path / "store.json").exists()


def test_stat_of_a_killed_store_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    """It shows everything all the same. After the next start it is 0 again."""
    store = commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}})
    kill_store(store)
    for words in ((), ("--json",)):
        done = CliRunner().invoke(app, ["stat", str(store.path), *words])
        assert done.exit_code == 3
        assert "killed" in done.output
    commitlog.Store.open(store.path).close()
    assert CliRunner().invoke(app, ["stat", str(store.path)]).exit_code == 0


@pytest.mark.nightly
def test_a_signal_during_the_start_drains_too(tmp_path: Path, config: Path) -> None:
    """SIGTERM before the stages run: the start comes to its end, then the stop to its own."""
    command = [sys.executable, "-m", "commitlog.cli", "run", str(tmp_path / "store"), "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        wait_until((tmp_path / "store" / "lock").exists, "the supervisor")
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.endswith(b"stopped, all is on disk\n")


@pytest.mark.nightly
def test_a_second_signal_hurries(tmp_path: Path, config: Path) -> None:
    """The flusher stands still and would have ten minutes.

    What it has not done stays in the pool for the next start.
    """
    config.write_text(f"{SMALL}[supervisor]\nstop_timeout_ms = 600000\n")
    store = tmp_path / "store"
    with running(store, config) as process:
        assert process.stdout
        with commitlog.Producer(store) as producer:
            producer.send("t", b"first").wait("flushed", 60)
            os.kill(pid_of(store, "flusher"), signal.SIGSTOP)
            producer.send("t", b"second")
        committer = pid_of(store, "committer")
        process.terminate()
        assert process.stdout.readline() == b"draining\n"
        wait_until(lambda: not is_running(committer), "the committer to drain and leave")
        assert process.poll() is None
        process.terminate()
        out = process.stdout.read()
        assert process.wait(60) == 0
        assert out.startswith(b"the pool stays: lane 0: ")
        assert out.endswith(b"stopped; the next start goes on with the pool\n")
    commitlog.Store.open(store).close()
    assert run("cat", store).stdout == b"first\nsecond\n"


def test_produce_runs_the_stages_itself(tmp_path: Path) -> None:
    """On a store that is not there yet, and again on it while it is stopped."""
    lines = tmp_path / "lines.txt"
    lines.write_text("a\nb\n")
    for _ in range(2):
        assert run("produce", tmp_path / "store", "t", lines).returncode == 0
    assert run("cat", tmp_path / "store", "--topic", "t").stdout == b"a\nb\na\nb\n"


def test_cat_follows_until_interrupted(tmp_path: Path) -> None:
    """What is flushed appears; Ctrl-C ends it without a word."""
    with commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}}) as store:
        producer = store.producer()
        producer.send("t", b"first").wait("flushed", 60)
        command = [sys.executable, "-m", "commitlog.cli", "cat", str(store.path), "--follow"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"first\n"
        producer.send("t", b"second")
        assert process.stdout.readline() == b"second\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
        assert (process.returncode, out, err) == (0, b"", b"")


def test_cat_into_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """`cat STORE | head -1` prints one line and nothing else."""
    store = HandMadeStore(tmp_path / "store")
    for number in range(300):  # more than a pipe holds
        store.lane(0).append("t", b"%d" % number * 500)
    store.publish()
    command = [sys.executable, "-m", "commitlog.cli", "cat", str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as cat:
        assert cat.stdout
        assert cat.stderr
        assert cat.stdout.readline() == b"0" * 500 + b"\n"
        cat.stdout.close()
        assert cat.stderr.read() == b""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one message of topic t."""
    with commitlog.Store.open(
        tmp_path_factory.mktemp("stopped") / "store", {"store": {"segment_bytes": 1 << 16}}
    ) as store:
        store.producer().send("t", b"x")
    return store.path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cat", "{absent}"), "StoreNotFound"),
        (("stat", "{absent}"), "there is no store here; check the path, or make a new one with `commitlog run "),
        (("destroy", "{absent}", "--yes"), "StoreNotFound"),
        (("run", "{file}"), "StoreRefused"),
        (("run", "/proc/here"), "no directory can be made here" if os.access("/proc", os.W_OK) else "no permission"),
        (("cat", "{file}"), "StoreRefused"),
        (("stat", "{file}"), "StoreRefused"),
        (("top", "{file}"), "StoreRefused"),
        (("produce", "{absent}", "t", "{directory}"), "InputError"),
        (("run", "{absent}", "--config", "{absent}"), "ConfigError"),
        (("produce", "{absent}", "t", "{absent}"), "InputError"),
        (("cat", "{store}", "--topic", "nope"), "UnknownTopic"),
        (("cat", "{store}", "--from", "99"), "OffsetOutOfRange"),
        (("readers", "{store}", "--remove", "nobody"), "ReaderError"),
        (("replicas", "{store}", "--forget", "nobody"), "ReplicaRefused"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    arguments: tuple[str, ...], says: str, stopped: Path, tmp_path: Path
) -> None:
    """The line names the error, nothing is made, and there is no traceback."""
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    places = {
        "absent": tmp_path / "absent",
        "file": tmp_path / "file",
        "directory": tmp_path / "directory",
        "store": stopped,
    }
    done = run(*(argument.format(**places) for argument in arguments))
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert says in done.stderr.decode()
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cat", "{store}", "--from", "whenever"), "BadStart"),
        (("cat", "{store}", "--partition", "128"), "OptionError"),
        (("cat", "{store}", "--token-file", "f"), "IllegalArgument"),
        (("cat", "commitlog://"), "IllegalArgument"),
        (("forward", "{store}", "kafka://one:99999"), "IllegalArgument"),
        (("forward", "{store}", "kafka://one", "--name", "/"), "OptionError"),
        (("forward", "{store}", "kafka://one", "--topic-map", "a"), "IllegalArgument"),
        (("ingest", "--producers", "65"), "IllegalArgument"),
        (("logs", "{store}", "--since", "whenever"), "BadStart"),
        (("metrics", "{store}", "--listen", "99999"), "IllegalArgument"),
        (("metrics", "{store}", "--listen", ""), "IllegalArgument"),
        (("metrics", "{store}", "--textfile", "metrics.txt"), "IllegalArgument"),
        (("produce", "{absent}", "bad topic"), "IllegalTopic"),
        (("readers", "{store}", "--remove", "/"), "OptionError"),
        (("readers", "{store}", "--seek", "billing", "whenever"), "BadStart"),
        (("serve", "{store}", "--listen", "127.0.0.1:99999"), "IllegalArgument"),
        (("serve", "{store}", "--listen", "0.0.0.0:4433"), "IllegalArgument"),
        (("serve", "{store}", "{store}"), "IllegalArgument"),
        (("token", "add", "{absent}", "a/b"), "IllegalArgument"),
        (("token", "remove", "{absent}"), "IllegalArgument"),
        (("topics", "{absent}", "--create", "sales", "--schema", "id"), "SchemaError"),
        (("trim", "{store}", "--before", "x"), "BadStart"),
        (("trim", "{store}", "--before", "2999-01-01"), "BadStart"),
        (("ui", "{store}", "--listen", "0.0.0.0:8080"), "IllegalArgument"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], says: str, stopped: Path, tmp_path: Path
) -> None:
    """Of whatever option or argument, as a value that typer itself refuses; nothing is made."""
    absent = tmp_path / "absent"
    done = run(*(argument.format(store=stopped, absent=absent) for argument in arguments))
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert done.stderr.endswith(f"[{says}]\n".encode())
    assert not absent.exists()


def test_a_word_that_is_none_of_those_allowed_is_named_with_them() -> None:
    done = run("config", "nope")
    assert done.returncode == 2
    assert b": 'nope' is not one of 'default', 'durable', 'rocketmq'" in done.stderr
    assert b"Value error" not in done.stderr


@pytest.mark.parametrize(
    "rest", with_nightly([b"x" * 5_000_000 + b"\n"], [b"x" * 30_000_000]), ids=["too large", "without an end"]
)
def test_a_line_that_is_too_large_stops_by_name_and_keeps_what_came_before(rest: bytes, tmp_path: Path) -> None:
    """The error counts what is on disk; a line that never ends fills no memory."""
    (tmp_path / "lines.txt").write_bytes(b"fine\n" + rest)
    done = run("produce", tmp_path / "store", "t", tmp_path / "lines.txt")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"MESSAGE_SIZE_EXCEEDED" in done.stderr
    with commitlog.Reader(tmp_path / "store") as reader:
        assert [message.value for message in reader] == [b"fine"]


def test_every_command_is_in_the_readme_and_has_help() -> None:
    """What there is, a newcomer finds."""
    text = README.read_text()
    assert len(COMMANDS) > 25
    for command in COMMANDS:
        assert re.search(rf"commitlog {command}\b", text), f"README does not mention `commitlog {command}`"
        done = CliRunner().invoke(app, [command, "--help"])
        assert done.exit_code == 0
        assert command in done.output


@pytest.mark.parametrize("command", ["config", "cat"])
def test_an_output_on_a_full_disk_is_a_one_line_error(command: str, stopped: Path) -> None:
    """So is what Python still holds in its buffer when the command ends."""
    words = [command]
    if command == "cat":
        words.append(str(stopped))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "commitlog.cli", *words], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "commitlog: standard output: No space left on device; make room, or send it elsewhere [OSError]\n"
    )


@pytest.mark.parametrize("command", with_nightly(["cat"], ["health", "dump --json", "stat --json", "verify", "topics"]))
def test_an_output_that_is_closed_is_an_error(command: str, stopped: Path) -> None:
    """As it is for coreutils: nobody gets what is asked for."""
    words = f"{sys.executable} -m commitlog.cli {command} {stopped} >&-"
    done = subprocess.run(words, shell=True, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (
        1,
        "commitlog: standard output: Bad file descriptor; it is closed: open it, or send it elsewhere [OSError]\n",
    )


@pytest.mark.parametrize("name", ["default", "durable", "rocketmq"])
def test_config_prints_a_file_that_can_be_given(name: str, tmp_path: Path) -> None:
    """With its comments."""
    printed = run("config", name).stdout
    assert printed == (CONFIGS / f"{name}.toml").read_bytes()
    file = tmp_path / "mine.toml"
    file.write_bytes(printed)
    load_config(file)


def test_version() -> None:
    """One line."""
    said = run("--version").stdout.decode()
    assert re.fullmatch(r"commitlog \d+\.\d+\.\d+, core: .+\n", said)
    assert said.endswith(f", core: {native.description}\n")
