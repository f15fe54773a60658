"""`commitlog bundle`: it has what helps, and no message, whatever state the store is in."""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import orjson
import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.shm.layout import STAGES
from tests.builders.hand_made import HandMadeStore
from tests.builders.killed import kill_store
from tests.command_line import run
from tests.crash.scene import pid_of

WORD = "rhubarb"
"""It is in every part of every message."""
SETTINGS: dict[str, dict[str, Any]] = {
    "store": {"segment_bytes": 1 << 16},
    "supervisor": {"hung_after_ms": 600_000},
}
JSON = ("stat", "topics", "readers", "doctor", "health")


def bundle(store: Path, file: Path, *, exit_code: int = 0) -> tuple[dict[str, bytes], str]:
    """The files of a new bundle, each by its name, and what the command said on standard error."""
    done = run("bundle", store, file)
    said = done.stderr.decode()
    assert done.returncode == exit_code, said
    if exit_code:
        return {}, said
    assert str(file) in done.stdout.decode().splitlines()[0]
    with tarfile.open(file) as archive:
        files = {name.partition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
        return {name: content.read() for name, content in files.items() if content is not None}, said


def assert_no_word(files: dict[str, bytes]) -> None:
    forms = [WORD.encode(), WORD.encode().hex().encode(), WORD.encode("utf-16-le")]
    assert not [name for name, data in files.items() for form in forms if form in data.lower()]


def send_words(store: commitlog.Store) -> None:
    """Messages with the word in value, key, header and tag, and in the rows of a typed topic."""
    store.create_topic("sales", schema="id BIGINT NOT NULL, fruit STRING")
    with store.producer() as producer:
        for number in range(5):
            value = f"{WORD} {number}".encode()
            producer.send("orders", value, key=f"{WORD}-{number}", headers={WORD: WORD}, tags=WORD)
        producer.send_rows("sales", [{"id": 1, "fruit": WORD}], key=WORD)
        producer.flush()
    with commitlog.Reader(store.path, topic="orders", name="billing") as reader:
        reader.commit(next(iter(reader)))


def damage(store: Path) -> None:
    """Changes a record, and leaves half of one behind the end of the log, as power loss does."""
    segment = store / "lanes/0/commitlog" / f"{0:020d}"
    data = segment.read_bytes()
    end = len(data.rstrip(b"\0"))
    record = data.index(f"{WORD} 1".encode())
    with segment.open("r+b") as file:
        file.seek(record)
        file.write(WORD.upper().encode())
        file.seek(end + (-end % 8))
        file.write(f"half of a record, {WORD}".encode())


@pytest.mark.nightly
def test_a_store_that_hangs(tmp_path: Path) -> None:
    """All that is known of a store that runs is there, though nobody answers; and no message."""
    pytest.importorskip("pyarrow")
    with commitlog.Store.open(tmp_path / "store", SETTINGS) as store:
        send_words(store)
        pids = [pid_of(store.path, name) for name in ("", *STAGES)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            files, said = bundle(store.path, tmp_path / "help.tar.gz")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    assert said == ""
    assert_no_word(files)
    assert {f"{name}.json" for name in JSON} | {"README.txt", "files.txt", "store.json"} <= set(files)
    assert {f"logs/{name}.log" for name in (*STAGES, "supervisor")} <= set(files)
    assert {"lanes/0/positions", "readers/billing.json"} <= set(files)
    assert orjson.loads(files["stat.json"])["running"] is True
    assert {topic["topic"] for topic in orjson.loads(files["topics.json"])["topics"]} == {"orders", "sales"}
    assert orjson.loads(files["store.json"])["config"]["store"]["segment_bytes"] == 1 << 16


@pytest.mark.nightly
@pytest.mark.leaves_pools
def test_what_was_damaged_is_noted(tmp_path: Path) -> None:
    """Of a store that has recovered from damage and a torn end, and was killed again."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "store"
    store = commitlog.Store.open(path, SETTINGS)
    send_words(store)
    kill_store(store)
    pool = StoreDirectory(path).load().pool
    assert pool is not None
    shutil.rmtree(pool.directory)
    damage(path)
    kill_store(commitlog.Store.open(path, SETTINGS))
    kept = {item.name: item.read_bytes() for item in (path / "lanes/0/quarantine").iterdir()}
    assert any(WORD.encode() in data for data in kept.values()), f"nothing was kept: {list(kept)}"
    files, _ = bundle(path, tmp_path / "help.tar.gz")
    assert_no_word(files)
    assert orjson.loads(files["stat.json"])["killed"] is True
    noted = {name.rpartition("/")[2] for name in files if "/quarantine/" in name}
    assert noted == {name for name in kept if name.endswith(".json")} != set()
    assert all(name in files["files.txt"].decode() for name in kept)


def put_what_looks_like_a_note(path: Path) -> None:
    """Files that were set aside and have messages in them, by names of several kinds."""
    aside = path / "lanes/0/quarantine"
    aside.mkdir()
    (aside / "queue-orders.json").write_text(WORD)
    (aside / f"torn-{5:020d}-0badc0de.bin").write_text(WORD)
    (path / "logs").mkdir()
    (path / "logs" / "flusher.log.swp").write_text(WORD)
    (path / "logs" / "flusher.log").symlink_to(aside / "queue-orders.json")


@pytest.mark.usefixtures("quick_spark_checks")
def test_no_message_of_a_stopped_store_is_in_it(store: HandMadeStore) -> None:
    """Neither of its log nor of what was set aside from it; its numbers are there."""
    for number in range(5):
        value = f"{WORD} {number}".encode()
        store.lane(0).append("orders", value, key=f"{WORD}-{number}", tags=WORD, properties={WORD: WORD})
    store.publish()
    put_what_looks_like_a_note(store.path)
    files, _ = bundle(store.path, store.path.parent / "help.tar.gz")
    assert_no_word(files)
    assert {topic["topic"] for topic in orjson.loads(files["topics.json"])["topics"]} == {"orders", "other"}
    assert {"store.json", "lanes/0/positions"} <= set(files)


@pytest.mark.nightly
@pytest.mark.usefixtures("quick_spark_checks")
def test_a_part_that_fails(store: HandMadeStore) -> None:
    """Its error is in its place, and standard error names it; the other parts are there.

    What only looks like a note stays out. The file is its owner's alone, also where there is one
    with another mode already.
    """
    put_what_looks_like_a_note(store.path)
    store.directory.file.write_bytes(b"{}")
    file = store.path.parent / "help.tar.gz"
    file.write_bytes(b"an older one")
    file.chmod(0o644)
    before = os.umask(0)
    try:
        files, said = bundle(store.path, file)
    finally:
        os.umask(before)
    assert_no_word(files)
    assert "logs/flusher.log has only an error" in said
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(file.parent)) == ["help.tar.gz", "store"]
    for name in ("stat", "topics", "readers"):
        assert f"{name}.json has only an error" in said
        assert b"StoreDamaged" in files[f"{name}.json"]
    assert orjson.loads(files["health.json"])["status"] == "down"
    assert orjson.loads(files["doctor.json"])["problems"] > 0
    assert files["store.json"] == b"{}"
    assert "lanes/1/positions" in files


def test_what_can_not_be(store: HandMadeStore) -> None:
    """A store that is not there, and a file that can't be made."""
    _, said = bundle(store.path.parent / "none", store.path.parent / "x", exit_code=1)
    assert "StoreNotFound" in said
    _, said = bundle(store.path, store.path.parent / "none" / "x", exit_code=2)
    assert "no directory that you may write to" in said
    mine = store.path.parent / "mine"
    mine.write_text("not to be lost")
    for file, why in ((mine, "there already"), (store.path / "store.json", "within"), (store.path / "x", "within")):
        _, said = bundle(store.path, file, exit_code=2)
        assert why in said
    assert mine.read_text() == "not to be lost"
