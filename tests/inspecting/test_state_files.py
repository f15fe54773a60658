"""One flipped bit in any small file of a store: it is named, and hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import orjson
import pytest

import commitlog
from commitlog.disk.file_channel import DISK
from commitlog.disk.quarantine import Quarantine
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.topic_ends import TopicEnds, save_ends
from commitlog.errors import DamagedFile, ReaderError, StoreDamaged
from commitlog.inspecting.verify import verify_store
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.topic_trim import carry_out, parse_before, plan_trim
from commitlog.reading.view import StoreView
from commitlog.schemas.declaring import declared_schema
from commitlog.schemas.topic_schemas import TopicSchemas
from tests.builders.hand_made import HandMadeStore, small_store
from tests.nightly import with_nightly


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    """Lanes 0 and 1 with 100 messages of `orders` each, the first 10 trimmed; all small files."""
    made = small_store(tmp_path / "store")
    with closing(StoreView(made.path)) as view:
        index = TopicIndex(view)
        index.refresh()
        carry_out(view, plan_trim(index, "orders", parse_before("orders", "10")))
    with commitlog.Reader(made.path, "orders", name="billing") as reader:
        next(reader)
        reader.commit()
    ReplicaFiles(made.directory).save(ReplicaState("standby", "replica", made.id, acknowledged={0: 1 << 14}))
    lane = made.directory.lane_directory(0)
    save_ends(lane, made.id, TopicEnds(made.lane(0).end, {"orders": 100}), DISK)
    Quarantine(lane, made.segment_bytes, DISK).note_corruption("a segment", 1 << 40, 1 << 41, "a test's", is_named=True)
    made.directory.lane_directory(0).queue_path("typed").mkdir(parents=True)
    TopicSchemas(made.directory).declare("typed", declared_schema("a INT"), evolve=False)
    return made


@contextmanager
def flipped(file: Path, text: bytes) -> Iterator[None]:
    """The file with another lowest bit in the last byte of a text in it, for a while."""
    good = file.read_bytes()
    at = good.index(text) + len(text) - 1
    file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    yield
    file.write_bytes(good)


def test_a_bit_of_each_file_is_named_by_verify(store: HandMadeStore, subtests: pytest.Subtests) -> None:
    """Digits, names of fields, and the checksum's own name and value."""
    path = store.path
    bits = {
        path / "lanes/0/trimmed.json": (b'"before":10', b'"orders', b'"store', b'"lane":0'),
        path / "lanes/0/ends.json": (b'"orders":1', b'"end', b'"lane":0'),
        path / f"lanes/0/quarantine/corrupt-{1 << 40:020d}.json": (b'"offset": 1', b'"bytes'),
        path / "readers/billing.json": (b'"orders', b'"moved_ms":1', b'"kind":"pytho'),
        path / "replicas/standby.json": (b'"acknowledged', b'"0": 1'),
        path / "topics/typed/1.json": (b'"name": "a',),
        path / "store.json": (b'"generation', b'"segment_bytes'),
    }
    assert verify_store(path).good
    for file, texts in bits.items():
        for text in (*texts, b'"crc32', b'"crc', orjson.loads(file.read_bytes())["crc32"][:2].encode()):
            with subtests.test(f"{file}: {text!r}"), flipped(file, text):
                report = verify_store(path)
                said = *report.findings, *(finding.reason for lane in report.lanes for finding in lane.findings)
                assert [line for line in said if line.removeprefix("unreadable: ").startswith(f"{file}: ")]
    assert verify_store(path).good


def test_ends_that_no_topic_can_have(store: HandMadeStore) -> None:
    """The file is whole by its checksum, and is named all the same."""
    lane = store.directory.lane_directory(0)
    for ends in (TopicEnds(-1, {"orders": 1}), TopicEnds(1 << 63, {"orders": 1})):
        save_ends(lane, store.id, ends, DISK)
        report = verify_store(store.path)
        said = *report.findings, *(finding.reason for lane in report.lanes for finding in lane.findings)
        assert [line for line in said if "ends.json" in line and "an end that no topic can have" in line]


def test_a_file_in_place_of_a_directory(store: HandMadeStore) -> None:
    """It is named, and the other files are looked at."""
    with flipped(store.path / "topics/typed/1.json", b'"name": "a'):
        for name in ("replicas", "readers"):
            (store.path / name).rename(store.path / f"{name}.aside")
            (store.path / name).touch()
        named = " ".join(verify_store(store.path).findings)
    assert all(str(store.path / name) in named for name in ("replicas", "readers", "topics/typed/1.json"))


@pytest.mark.parametrize("place", with_nightly(["topics/typed"], ["topics"]))
def test_a_file_in_place_of_schemas(place: str, store: HandMadeStore, tmp_path: Path) -> None:
    """verify and backup name it; nobody takes the topic for one of bytes."""
    path = store.path / place
    path.rename(tmp_path / "aside")
    path.touch()
    named = f"{path} is no directory"
    assert [finding for finding in verify_store(store.path).findings if finding.startswith(named)]
    report = commitlog.backup(store.path, tmp_path / "backup")
    assert [finding for finding in report.findings if finding.startswith(named)]
    with pytest.raises(StoreDamaged, match="is no directory"):
        commitlog.read_arrow(store.path, "typed")
    with (
        commitlog.Store.open(store.path) as running,
        running.producer() as producer,
        pytest.raises(StoreDamaged, match="is no directory"),
    ):
        producer.send("typed", b"bytes, and no row")


@pytest.mark.filterwarnings("ignore::commitlog.errors.ReadingWarning")
def test_what_a_flipped_bit_refuses(store: HandMadeStore) -> None:
    """Readers of what the file is about; all else goes on."""
    path = store.path
    with flipped(path / "lanes/0/trimmed.json", b'"before":10'):
        with pytest.raises(
            DamagedFile, match=r"lanes/0/trimmed\.json: .*crc32 does not match.*put it back, or remove it"
        ):
            commitlog.read_arrow(path, "orders").read_all()
        with commitlog.Store.open(path) as running, running.producer() as producer:
            producer.send("orders", b"while it is damaged").wait()
    with (
        flipped(path / "lanes/0/ends.json", b'"orders'),
        commitlog.Store.open(path) as running,
        running.producer() as producer,
    ):
        producer.send("new", b"while it is damaged").wait()
    with flipped(path / "readers/billing.json", b'"orders'):
        with pytest.raises(ReaderError, match=r"readers/billing\.json: .*crc32 does not match.*remove the file if"):
            commitlog.Reader(path, "orders", name="billing")
        assert commitlog.read_arrow(path, "orders").read_all().num_rows == 2 * 90 + 1
    with flipped(path / "store.json", b'"generation'), pytest.raises(StoreDamaged, match=r"store\.json: .*crc32"):
        commitlog.read_arrow(path, "orders")


def test_files_of_older_packages_get_a_checksum_when_they_are_written(store: HandMadeStore) -> None:
    """Without one they are read as before."""
    files = [store.path / name for name in ("lanes/0/trimmed.json", "readers/billing.json", "store.json")]
    for file in files:
        values = orjson.loads(file.read_bytes())
        del values["crc32"]
        file.write_bytes(orjson.dumps(values))
    assert verify_store(store.path).good
    assert commitlog.read_arrow(store.path, "orders").read_all().num_rows == 2 * 90
    with commitlog.Reader(store.path, "orders", name="billing") as reader:
        next(reader)
        reader.commit()
    with closing(StoreView(store.path)) as view:
        index = TopicIndex(view)
        index.refresh()
        carry_out(view, plan_trim(index, "orders", parse_before("orders", "11")))
    directory = StoreDirectory(store.path)
    directory.save(directory.load())
    assert all("crc32" in orjson.loads(file.read_bytes()) for file in files)
