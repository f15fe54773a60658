"""`commitlog produce`: keys, headers, rows, how many, how fast, and what a Ctrl-C leaves."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

import commitlog
from commitlog.cli.app import app
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import InputError, NoSchema
from tests.command_line import run, run_process
from tests.crash.scene import pid_of
from tests.nightly import with_nightly
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commitlog.Store]:
    """A running store for all tests here; each has a topic of its own."""
    path = tmp_path_factory.mktemp("produce") / "store"
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 16}}) as opened:
        yield opened


def produce(store: commitlog.Store, topic: str, lines: str, *words: str) -> Result:
    file = file_of(store, topic)
    file.write_text(lines)
    return CliRunner().invoke(app, ["produce", str(store.path), topic, str(file), *words])


def file_of(store: commitlog.Store, topic: str) -> Path:
    return store.path.parent / f"{topic}.txt"


def invoke(*words: object) -> None:
    """Runs a command; its error is raised here."""
    CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def messages(store: commitlog.Store, topic: str) -> list[commitlog.Message]:
    with commitlog.Reader(store.path, topic) as reader:
        return list(reader)


def test_keys_come_from_the_lines(store: commitlog.Store) -> None:
    """Only the first separator counts; a line without one has no key."""
    done = produce(store, "keys", "1: one:two\nnone\n: empty\n", "-K", ": ", "--tags", "t", "--header", "a=b=c")
    assert done.exit_code == 0, done.output
    found = messages(store, "keys")
    assert [(message.key, message.value) for message in found] == [("1", b"one:two"), (None, b"none"), (None, b"empty")]
    assert {(message.tags, message.headers["a"]) for message in found} == {("t", "b=c")}


def test_count_and_rate(store: commitlog.Store) -> None:
    """The lines behind the count are not sent; a rate changes nothing but the time."""
    done = produce(store, "count", "".join(f"{n}\n" for n in range(100)), "--count", "30", "--rate", "1000")
    assert "30 messages sent to count, all on disk" in done.output
    assert [message.value for message in messages(store, "count")] == [b"%d" % n for n in range(30)]


def test_rows_of_a_typed_topic(store: commitlog.Store) -> None:
    store.create_topic("sales", schema="id BIGINT NOT NULL, fruit STRING, price DOUBLE")
    done = produce(store, "sales", '{"id": 1, "fruit": "apple", "price": 0.5}\n\n{"id": 2}\n', "--rows")
    assert "2 rows sent to sales, all on disk" in done.output
    printed = CliRunner().invoke(app, ["cat", str(store.path), "--topic", "sales", "--rows"]).output
    assert printed == '{"id":1,"fruit":"apple","price":0.5}\n{"id":2,"fruit":null,"price":null}\n'
    wrong = produce(store, "sales", '{"id": 3}\nnot json\n', "--rows")
    assert wrong.exit_code == 1
    assert f"stopped after 1 row, all of which are on disk: {file_of(store, 'sales')}: line 2 is not JSON" in str(
        wrong.exception
    )


BAD_LINES = {
    "not-json": ("no json", "line 4 is not JSON"),
    "no-object": ('[{"id": 3}]', """line 4 is no JSON object: '[{"id": 3}]'"""),
    "bad-value": ('{"id": "x", "n": 1}', "line 4: column id: 'x' is no BIGINT"),
    "bad-columns": ('{"id": 1, "n": "y"}\n{"id": "x"}', "line 4: column n: 'y' is no INT"),
    "too-large": ('{"id": 1, "t": "' + "x" * 65_000 + '"}', "line 4: MESSAGE_SIZE_EXCEEDED"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_rows_before_a_bad_line_are_sent(store: commitlog.Store, name: str) -> None:
    """The error counts them and names the line; nothing behind it is sent."""
    store.create_topic(name, schema="id BIGINT, n INT, t STRING")
    bad, message = BAD_LINES[name]
    done = produce(store, name, f'{{"id": 1}}\n\n{{"id": 2}}\n{bad}\n{{"id": 3}}\n', "--rows")
    assert f"stopped after 2 rows, all of which are on disk: {file_of(store, name)}: {message}" in str(done.exception)
    assert commitlog.read_arrow(store.path, name, columns=["id"]).read_all().to_pydict() == {"id": [1, 2]}


def test_a_line_that_can_not_be_sent_is_named(store: commitlog.Store, tmp_path: Path) -> None:
    """By its file and its number in it, whatever was read before it."""
    store.create_topic("named", schema="id BIGINT NOT NULL")
    (tmp_path / "first").write_text('{"id": 1}\n' * 3)
    (tmp_path / "second").write_text('{"id": 1}\n\n{"id": "x"}\n')
    with pytest.raises(InputError, match=r"after 4 rows, .*/second: line 3: column id: 'x' is no BIGINT"):
        invoke("produce", store.path, "named", tmp_path / "first", tmp_path / "second", "--rows")
    (tmp_path / "third").write_bytes(b"a:1\n\xff:2\n")
    with pytest.raises(InputError, match=r"after 4 lines, .*/third: line 2: its key is not UTF-8"):
        invoke("produce", store.path, "keyed", tmp_path / "first", tmp_path / "third", "-K", ":")


@pytest.mark.parametrize(("key", "why"), [("x\1y", "key: 0x01 and 0x02"), ("k" * 40_000, "PROPERTIES_SIZE_EXCEEDED")])
def test_lines_before_a_key_that_no_message_can_have_are_sent(
    store: commitlog.Store, tmp_path: Path, key: str, why: str
) -> None:
    topic, lines = f"keys-{len(key)}", tmp_path / "lines"
    lines.write_text(f"a:1\nb:2\n{key}:3\nc:4\n")
    with pytest.raises(InputError, match=rf"after 2 lines, .*/lines: line 3: {why}"):
        invoke("produce", store.path, topic, lines, "-K", ":")
    assert run("cat", store.path, "--topic", topic).stdout == b"1\n2\n"


def test_values_are_bytes_in_any_encoding(store: commitlog.Store, tmp_path: Path) -> None:
    """Only keys and rows have to be UTF-8."""
    (tmp_path / "latin").write_bytes("Grüße\n".encode("latin-1"))
    invoke("produce", store.path, "latin", tmp_path / "latin")
    assert run("cat", store.path, "--topic", "latin").stdout == "Grüße\n".encode("latin-1")
    assert b'"value_base64":"R3L832U="' in run("cat", store.path, "--topic", "latin", "--format", "json").stdout
    store.create_topic("latin-rows", schema="t STRING")
    (tmp_path / "rows").write_bytes('{"t": "Grüße"}\n'.encode("latin-1"))
    with pytest.raises(InputError, match=r"after 0 rows, .*/rows: line 1 is not JSON: str is not valid UTF-8"):
        invoke("produce", store.path, "latin-rows", tmp_path / "rows", "--rows")


def test_of_a_column_that_a_line_names_twice_the_last_counts(store: commitlog.Store) -> None:
    """As Spark's `from_json` has it, and `values=json`."""
    store.create_topic("twice", schema="a STRING, s STRUCT<x: INT>")
    produce(store, "twice", '{"a": "first", "s": {"x": 1, "x": 2}, "a": "last"}\n', "--rows")
    assert run("cat", store.path, "--topic", "twice", "--rows").stdout == b'{"a":"last","s":{"x":2}}\n'


def test_a_separator_may_be_an_escape(store: commitlog.Store) -> None:
    """As in kcat's, and in the formats of `cat`."""
    assert produce(store, "escape", "1\tone\n", "-K", r"\t").exit_code == 0
    assert produce(store, "escape", "2\x1ftwo\n", "-K", r"\x1f").exit_code == 0
    assert [(message.key, message.value) for message in messages(store, "escape")] == [("1", b"one"), ("2", b"two")]


def test_lines_that_are_too_long_are_skipped_and_counted(store: commitlog.Store) -> None:
    """Where it is asked for. Otherwise the first one ends it."""
    lines = "one\n" + "x" * 500_000 + "\n" + "y" * 65_000 + "\ntwo\n"
    done = produce(store, "long", lines, "--skip-long")
    assert "2 messages sent to long, all on disk; 2 lines skipped, longer than a message may be" in done.output
    assert [message.value for message in messages(store, "long")] == [b"one", b"two"]


def test_what_is_no_text_is_read_or_named(store: commitlog.Store, tmp_path: Path) -> None:
    """It is not sent as noise; only a file can be uncompressed."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    invoke("produce", store.path, "packed", tmp_path / "a.gz")
    assert [message.value for message in messages(store, "packed")] == [b"one", b"two"]
    (tmp_path / "plain.gz").write_bytes(b"three\n")
    said = CliRunner().invoke(app, ["produce", str(store.path), "packed", str(tmp_path / "plain.gz")]).output
    assert "plain.gz is not compressed, as its name says: it is read as the text that it is" in said
    assert messages(store, "packed")[-1].value == b"three"
    (tmp_path / "wide").write_bytes("one\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"after 0 lines, .*/wide: is UTF-16, no text in UTF-8; `iconv -f UTF-16"):
        invoke("produce", store.path, "packed", tmp_path / "wide")
    done = run_process("produce", store.path, "packed", given=gzip.compress(b"one\n"))
    assert b"standard input: is gzip, no text in UTF-8; `gzip -dc FILE | \xe2\x80\xa6` makes it so" in done.stderr


def test_a_standard_input_that_does_not_block_is_waited_for(store: commitlog.Store) -> None:
    """Somebody who shares it has set it so. The lines of its writer come, all of them."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    command = [sys.executable, "-m", "commitlog", "produce", str(store.path), "unblocked"]
    with subprocess.Popen(command, stdin=read, stderr=subprocess.PIPE) as process:
        os.close(read)
        for number in (1, 2):
            os.write(write, b"line\n")
            wait_until(
                lambda: "unblocked" in topics(store) and len(messages(store, "unblocked")) == number,  # noqa: B023
                "the line",
            )
        os.close(write)
        assert process.communicate(timeout=60)[1] == b"2 messages sent to unblocked, all on disk\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--header", "a"), "write NAME=VALUE"),
        (("--header", "n=1", "--header", "n=2"), "'n' is there twice; a message has one value for each name"),
        (("-K", ""), "--key-separator is empty"),
        (("-K", ":", "--key", "k"), "--key-separator goes without --key"),
        (("--rate", "0"), "Invalid value"),
        (("--rate", "nan"), "'nan' is no rate; give messages a second, from 0.001 to 1,000,000,000"),
        (("--rate", "inf"), "is no rate"),
        (("--rate", "-1"), "is no rate"),
        (("-K", r"\q"), r"--key-separator: '\\q' is not known"),
        (("--count", "-1"), "Invalid value"),
    ],
)
def test_wrong_words_are_a_usage_error(store: commitlog.Store, words: tuple[str, ...], says: str) -> None:
    done = produce(store, "never", "x\n", *words)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_with_the_variable_the_store_is_left_out(store: commitlog.Store) -> None:
    """A store in the topic's place is an error that says so."""
    file = store.path.parent / "variable.txt"
    file.write_text("x\n")
    environment = {"COMMITLOG_STORE": str(store.path)}
    done = CliRunner().invoke(app, ["produce", "variable", str(file)], env=environment)
    assert done.exit_code == 0, done.output
    assert [message.value for message in messages(store, "variable")] == [b"x"]
    wrong = CliRunner().invoke(app, ["produce", str(store.path), "variable", str(file)], env=environment)
    assert wrong.exit_code == 2
    assert "COMMITLOG_STORE is set" in " ".join(wrong.output.split())


@contextmanager
def fed(store: commitlog.Store, topic: str, data: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """The command, which has sent the two lines that are whole in `data`, and waits for more."""
    command = [sys.executable, "-m", "commitlog", "produce", str(store.path), topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(data)
        process.stdin.flush()
        wait_until(lambda: topic in topics(store) and len(messages(store, topic)) == 2, "two lines")
        yield process


@pytest.mark.parametrize(("number", "code"), with_nightly([(signal.SIGINT, 130)], [(signal.SIGTERM, -signal.SIGTERM)]))
def test_a_ctrl_c_counts_what_is_on_disk(store: commitlog.Store, number: int, code: int) -> None:
    """So does SIGTERM, by which service managers and timeout(1) end a command."""
    topic = f"interrupted-{number}"
    with fed(store, topic, b"one\ntwo\nthr") as process:
        os.kill(process.pid, number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert said == f"stopped: 2 messages sent to {topic}, all on disk\n".encode()


def test_rows_of_a_topic_without_a_schema(store: commitlog.Store, tmp_path: Path) -> None:
    """The error says how to give it one. Nothing is sent, and no store is made for it."""
    for path in (store.path, tmp_path / "absent"):
        done = CliRunner().invoke(app, ["produce", str(path), "untyped", "--rows"], input='{"id": 1}\n')
        assert isinstance(done.exception, NoSchema)
        assert str(done.exception) == (
            f"topic untyped has no schema: `commitlog topics {path} --create untyped --schema 'id BIGINT, …'` gives it one; "
            "or send lines, without --rows"
        )
    assert not (tmp_path / "absent").exists()


@pytest.mark.nightly
def test_a_store_that_does_not_run(tmp_path: Path) -> None:
    """Its stages run as they ran last: by default old segments go, and `send` waits for no disk."""
    path = tmp_path / "store"
    own = {"retention": {"reserved_hours": 0}, "store": {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH"}}
    commitlog.Store.open(path, own).close()
    settings = StoreDirectory(path).load().config
    assert run("produce", path, "orders", given=b"one\n").returncode == 0
    assert StoreDirectory(path).load().config == settings


@pytest.mark.nightly
def test_two_that_begin_at_the_same_moment(tmp_path: Path) -> None:
    """One of them runs the stages for both, and stays until the other one has ended."""
    path = tmp_path / "store"
    commands = [[sys.executable, "-m", "commitlog", "produce", str(path), topic] for topic in ("a", "b")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]
    for process in processes:
        assert process.stdin
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
    wait_until(lambda: (path / "store.json").exists() and read_topics(path) == ["a", "a", "b", "b"], "lines of both")
    owner_pid = psutil.Process(pid_of(path, "")).ppid()
    (owner,) = (process for process in processes if process.pid == owner_pid)
    (guest,) = (process for process in processes if process.pid != owner_pid)
    assert owner.stdin
    assert owner.stderr
    owner.stdin.close()
    assert owner.stderr.readline().startswith(b"2 messages sent to ")
    assert owner.stderr.readline() == b"waiting for 1 other producer, which needs the stages; Ctrl-C stops them\n"
    _, said = guest.communicate(b"three\n", timeout=60)
    assert (guest.returncode, said.startswith(b"3 messages sent to ")) == (0, True)
    assert owner.wait(60) == 0
    assert owner.stderr.read() == b""
    owner.stderr.close()
    assert b"  stopped, " in run("stat", path).stdout
    assert sorted(read_topics(path)) in (["a", "a", "a", "b", "b"], ["a", "a", "b", "b", "b"])


def read_topics(path: Path) -> list[str]:
    """The topic of each message, sorted."""
    with commitlog.Reader(path) as reader:
        return sorted(message.topic for message in reader)


def topics(store: commitlog.Store) -> list[str]:
    return CliRunner().invoke(app, ["cat", str(store.path), "--format", "%t "]).output.split()


def test_what_is_only_flushed_too_late_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on by the count doubles nothing."""
    slow = {
        "store": {"segment_bytes": 1 << 16, "flush_disk_type": "SYNC_FLUSH"},
        "producer": {"sync_flush_timeout_ms": 50},
    }
    with commitlog.Store.open(tmp_path / "store", slow) as store:
        flusher = pid_of(store.path, "flusher")
        os.kill(flusher, signal.SIGSTOP)
        flush = commitlog.Producer.flush

        def go_on(producer: commitlog.Producer, *arguments: Any, **named: Any) -> None:
            os.kill(flusher, signal.SIGCONT)
            flush(producer, *arguments, **named)

        monkeypatch.setattr(commitlog.Producer, "flush", go_on)
        done = produce(store, "late", "one\ntwo\n")
        assert done.exit_code == 1
        assert "stopped after 2 lines, all of which are on disk: " in str(done.exception)
        assert len(messages(store, "late")) == 2


def test_a_store_that_stops_meanwhile(tmp_path: Path) -> None:
    """The count of what was sent is said in any case. The third line may have been refused."""
    store = commitlog.Store.open(tmp_path / "store", {"store": {"segment_bytes": 1 << 16}})
    with fed(store, "t", b"one\ntwo\n") as process:
        assert process.stdin
        store.close()
        process.stdin.write(b"three\n")
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    two, three = (
        rb"2 lines, all of which are on disk: ",
        rb"3 lines \(.*; whether all of them are on disk is not known: ",
    )
    assert re.match(rb"commitlog: stopped after (%b|%b)" % (two, three), said)
    with commitlog.Store.open(store.path):
        pass
    assert len(messages(store, "t")) >= 2
