"""Reader and `commitlog cat` on RocketMQ store roots.

They give what a real RocketMQ wrote, as it would read it itself.
"""

from __future__ import annotations

import base64
import os
import struct
import warnings
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from commitlog.cli.app import app
from commitlog.client.reader import Reader
from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    DamagedFile,
    OffsetOutOfRange,
    OptionError,
    ReadingWarning,
    StoreNotFound,
    UnknownTopic,
)
from commitlog.message import Message
from commitlog.record.properties import RESERVED_NAMES
from commitlog.record.record import RecordEncoder
from tests.builders.hand_made import V4
from tests.builders.made_lane import image
from tests.builders.vector_store import NAMES, VectorStore, load
from tests.command_line import run

HALTED = ("dirty", "torn")


@pytest.fixture(params=NAMES)
def store(request: pytest.FixtureRequest) -> VectorStore:
    return load(request.param)


def in_queues(store: VectorStore) -> list[dict[str, Any]]:
    """The lines of expected.jsonl that have a consume queue entry, in log order."""
    places = {(line["topic"], line["queueId"], line["index"]): line["offset"] for line in store.queue_entries}
    return [
        line
        for line in store.expected
        if places.get((line["topic"], line["queueId"], line["queueOffset"])) == line["physicOffset"]
    ]


def as_expected(message: Message) -> dict[str, Any]:
    """A message with the names of expected.jsonl."""
    properties = message.properties
    assert (message.key, message.tags) == (properties.get("KEYS"), properties.get("TAGS"))
    assert message.headers == {name: value for name, value in properties.items() if name not in RESERVED_NAMES}
    return {
        "physicOffset": message.physical_offset,
        "topic": message.topic,
        "queueId": message.partition,
        "queueOffset": message.offset,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.timestamp,
        "body": base64.b64encode(message.value).decode(),
        "properties": properties,
        "msgId": message.message_id,
    }


def expected_of(line: dict[str, Any]) -> dict[str, Any]:
    names = ("physicOffset", "topic", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp", "msgId")
    properties = {name: value for name, value in line["properties"].items() if name != "__CRC32#"}
    return {name: line[name] for name in names} | {
        "body": line.get("plainBody", line["body"]) or "",
        "properties": properties,
    }


def read(path: Path, *arguments: Any, **options: Any) -> list[Message]:
    with Reader(path, *arguments, **options) as reader:
        return list(reader)


def unpack(store: VectorStore, directory: Path) -> Path:
    return store.unpack(directory / "root")


@pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")
def test_all_messages_in_log_order(store: VectorStore, tmp_path: Path) -> None:
    """Whatever the segment size; nothing is written, not even a time of access that matters."""
    root = unpack(store, tmp_path)
    before = image(root)
    assert list(map(as_expected, read(root))) == list(map(expected_of, in_queues(store)))
    assert image(root) == before


@pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")
def test_each_queue_by_itself(store: VectorStore, tmp_path: Path) -> None:
    """By topic; from an offset, a time, the last few. Offsets of a queue are without a gap."""
    root = unpack(store, tmp_path)
    by_topic = defaultdict(list)
    for line in in_queues(store):
        by_topic[line["topic"]].append(line)
    assert by_topic
    for topic, lines in by_topic.items():
        assert list(map(as_expected, read(root, topic))) == list(map(expected_of, lines))
        ends = {
            queue: max(x["queueOffset"] for x in lines if x["queueId"] == queue)
            for queue in {x["queueId"] for x in lines}
        }
        last = [line for line in lines if line["queueOffset"] > ends[line["queueId"]] - 2]
        assert list(map(as_expected, read(root, topic, start="last 2"))) == list(map(expected_of, last))
        assert read(root, topic, start="latest") == []


def test_a_torn_tail_is_passed_over_aloud(tmp_path: Path) -> None:
    """The last record of a RocketMQ that was halted has an entry and is no record."""
    root = unpack(load("torn"), tmp_path)
    with pytest.warns(ReadingWarning, match="name no good records"):
        assert len(read(root)) == len(in_queues(load("torn")))
    (root / "abort").unlink()  # a clean stop leaves no such thing
    with pytest.raises(CommitLogError, match="topic of 0 bytes"):
        read(root)


@pytest.mark.parametrize("options", [{"follow": True}, {"isolation": "committed"}])
def test_what_only_our_stores_have(tmp_path: Path, options: dict[str, Any]) -> None:
    root = unpack(load("v1_basic"), tmp_path)
    with pytest.raises(OptionError, match="RocketMQ store root"):
        Reader(root, **options)


def test_mistakes_by_name(tmp_path: Path) -> None:
    root = unpack(load("rolls"), tmp_path)
    with pytest.raises(UnknownTopic, match="there are: rolls"):
        Reader(root, "other")
    with pytest.raises(OffsetOutOfRange, match=r"rolls, queue 0: offset 1,000 is outside \[0, 19\]"):
        Reader(root, "rolls", start=1000)


@pytest.mark.parametrize("at", ["first", "middle", "last"])
@pytest.mark.parametrize("what", ["hole", "junk", "other"])
def test_a_damaged_entry_is_an_error(tmp_path: Path, at: str, what: str) -> None:
    """Only the entries say what may be read of such a root.

    So a damaged entry is always an error, and messages are never missing silently.
    """
    root = unpack(load("rolls"), tmp_path)
    file = root / "consumequeue" / "rolls" / "0" / f"{0:020d}"
    good = file.read_bytes()
    place = {"first": 0, "middle": 9, "last": 18}[at] * 20
    bad = {"hole": bytes(20), "junk": os.urandom(20), "other": good[(place + 60) % 200 :][:20]}[what]
    file.write_bytes(good[:place] + bad + good[place + 20 :])
    if (what, at) == ("hole", "last"):
        assert len(read(root)) == len(load("rolls").expected) - 1  # is what a queue that is one shorter looks like
        return
    with pytest.raises(CommitLogError):
        read(root)


def test_a_value_that_does_not_unpack(tmp_path: Path) -> None:
    """It is an error with its place and the way out, or left out, and hides no other message."""
    root = tmp_path / "root"
    record, log, entries = RecordEncoder(0, V4, V4, True), b"", b""
    for offset, (body, flag) in enumerate([(b"first", 0), (zlib.compress(bytes(5 << 20)), 1), (b"last", 0)]):
        data = record.encode(b"orders", body, b"", offset, len(log), 1000, 2000, sys_flag=flag)
        entries += struct.pack(">qiq", len(log), len(data), 0)
        log += data
    for name, content, size in (("commitlog", log, 1 << 16), ("consumequeue/orders/0", entries, 6_000_000)):
        (root / name).mkdir(parents=True)
        (root / name / f"{0:020d}").write_bytes(content.ljust(size, b"\0"))
    with Reader(root, "orders") as reader:
        assert next(reader).offset == 0
        with pytest.raises(CorruptRecord, match=r"commitlog/0{20} at offset \d+: the ZLIB body .*ignore_corrupt"):
            next(reader)
    with pytest.warns(ReadingWarning, match="1 message"), Reader(root, "orders", ignore_corrupt=True) as reader:
        assert [message.offset for message in reader] == [0, 2]


def test_light_queues(tmp_path: Path) -> None:
    """The entries of light queues name records of other topics.

    The records come under the queue's own name, if somebody asks for it.
    """
    store = load("v1_basic")
    root = unpack(store, tmp_path)
    some = in_queues(store)[3:30:5]
    queue = ConsumeQueue(root / "consumequeue" / "%LMQ%device" / "0", 2000)
    queue.place(
        range(len(some)), [line["physicOffset"] for line in some], [line["size"] for line in some], [0] * len(some)
    )
    queue.close()
    found = read(root, "%LMQ%device")
    assert [(m.topic, m.partition, m.offset) for m in found] == [("%LMQ%device", 0, n) for n in range(len(some))]
    assert [m.physical_offset for m in found] == [line["physicOffset"] for line in some]
    assert len(read(root)) == len(in_queues(store))


@pytest.mark.parametrize("instead", ["nothing", "a link", "a directory", "a pipe"])
def test_a_segment_that_is_missing(instead: str, tmp_path: Path) -> None:
    """Also where there is something in its place that is no file."""
    root = unpack(load("rolls"), tmp_path / "store")
    segment = root / "commitlog" / f"{8192:020d}"
    segment.rename(tmp_path / "segment")
    if instead == "a link":
        segment.symlink_to(tmp_path / "segment")
    elif instead == "a directory":
        segment.mkdir()
    elif instead == "a pipe":
        os.mkfifo(segment)
    with pytest.raises(DamagedFile, match="00000000000000008192"):
        read(root)


def test_cat(tmp_path: Path) -> None:
    """JSON lines with topic, partition and offset. An error is one line, with exit code 1."""
    store = load("transactions")
    root = unpack(store, tmp_path)
    done = run("cat", root, "--format", "json")
    rows = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"")
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (line["topic"], line["queueId"], line["queueOffset"]) for line in in_queues(store)
    ]
    done = run("cat", root, "--follow")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"OptionError" in done.stderr


@pytest.mark.parametrize("command", [["stat"], ["destroy", "--yes"], ["readers"], ["top"]])
def test_commands_for_stores_only(command: list[str], tmp_path: Path) -> None:
    """Name those that read it, and change nothing."""
    root = unpack(load("v1_basic"), tmp_path)
    before = image(root)
    error = CliRunner().invoke(app, [*command, str(root)]).exception
    assert isinstance(error, StoreNotFound)
    assert "RocketMQ store root" in str(error)
    assert "`commitlog cat`" in str(error)
    assert image(root) == before


def test_statistics(tmp_path: Path) -> None:
    """Partitions are queue ids; at the end nothing is before it."""
    root = unpack(load("v1_basic"), tmp_path)
    with warnings.catch_warnings(), Reader(root) as reader:
        warnings.simplefilter("error")
        before = reader.statistics()
        assert before.messages == 0
        assert all(behind > 0 for behind in before.behind_bytes.values())
        count = sum(1 for _ in reader)
        after = reader.statistics()
    assert after.messages == count == len(in_queues(load("v1_basic")))
    assert set(after.behind_bytes.values()) == {0}
    assert set(after.positions) == {line["queueId"] for line in load("v1_basic").expected}
