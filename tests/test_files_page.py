"""docs/internals/files.md says what is on the disk and in shared memory."""

from __future__ import annotations

import dataclasses
import re
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import commitlog
from commitlog.disk.backup_note import BackupNote
from commitlog.disk.checked_json import from_checked_json
from commitlog.disk.checkpoint import SLOT_BYTES, STORE_CHECKPOINT_BYTES, Positions, PositionsFile, StoreCheckpoint
from commitlog.disk.consume_queue import ENTRY
from commitlog.disk.copy_witness import CopyWitness
from commitlog.disk.file_channel import DISK
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.locks import stage_at
from commitlog.disk.quarantine import Cut
from commitlog.disk.replica_files import ReplicaState
from commitlog.disk.replica_mark import ReplicaMark, mark_superseded
from commitlog.disk.replication_troubles import ReplicationTroubles
from commitlog.disk.server_files import ClientTraffic, ServerFile, ServerStatistics
from commitlog.disk.store_directory import LaneDirectory, StoreDirectory, StoreFacts
from commitlog.disk.trim_request import TrimRequest
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.named_reader import PYTHON, Client, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.record.record_layout import HEAD_V4
from commitlog.shm.layout import (
    ALL_STAGES,
    CONTROL_BYTES,
    DECLARED,
    HEADER_WORDS,
    LANE_ROW_WORDS,
    LANE_ROWS,
    LANES_AT,
    STAGE_ROW_WORDS,
    STAGE_ROWS,
    STAGES_AT,
)
from tests.command_line import run
from tests.replicas.conftest import certificates, templates
from tests.replicas.scene import SEGMENT_BYTES, Scene, await_copy
from tests.serving.asking import Certificates

__all__ = ["certificates", "templates"]

PAGE = Path(__file__).parent.parent / "docs/internals/files.md"
PARTS = {
    "lane": r"\d+",
    "start": r"\d{20}",
    "offset": r"\d{20}",
    "crc": "[0-9a-f]{8}",
    "id": "[0-9a-f]{16}",
    "version": r"\d+",
    "number": "[123]",
    "stage": "|".join(("supervisor", *ALL_STAGES)),
}
"""What stands for a placeholder in a name; a name otherwise."""
PASSING = {
    "trim.json",
    "replication.json",
    "incomplete-backup.json",
    "locks/trim",
    "logs/<stage>.log.<number>",
    "lanes/<lane>/tmp/<start>",
    "lanes/<lane>/quarantine/cut.json",
    "lanes/<lane>/quarantine/rebuild.json",
    "lanes/<lane>/quarantine/copy.partial",
}
"""Files that are there for a moment, or after a long time: the page names them from the code."""
Row = list[str]


def tables() -> dict[str, list[Row]]:
    """Heading → the rows of the tables below it, each cell without backticks."""
    found: dict[str, list[Row]] = {}
    for part in re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        bodies = re.findall(r"^\|[-| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
        lines = "".join(bodies).splitlines()
        found[heading] = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return found


BLOCKS = {name: DECLARED[name] for name in ("Header", "Stage", "Lane")}
"""Other tests declare blocks of their own."""
TABLES = tables()


def files_of(*headings: str) -> list[str]:
    return [row[0] for heading in headings for row in TABLES[heading]]


def pattern(name: str) -> re.Pattern[str]:
    """The names of files that a name of the page stands for."""
    pieces = re.split(r"<(\w+)>", name)
    return re.compile(
        "".join(f"({PARTS.get(piece, '[^/]+')})" if odd % 2 else re.escape(piece) for odd, piece in enumerate(pieces))
    )


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def places(
    certificates: Certificates, templates: Path, tmp_path_factory: pytest.TempPathFactory, shm_base: Path
) -> dict[str, set[str]]:
    """Which files there are after everything: of stores, by their paths, and of the pool."""
    scene = Scene(tmp_path_factory.mktemp("scene"), certificates, templates)
    with pytest.MonkeyPatch.context() as patch:
        (shm_base / "files").mkdir(mode=0o700)
        patch.setenv("COMMITLOG_SHM_DIR", str(shm_base / "files"))
        found = {"pool": live(scene)}
        damage(scene.path / "damaged")
    (shm_base / "files").rmdir()
    for name in ("primary", "copy", "backup", "damaged"):
        found[str(scene.path / name)] = files_in(scene.path / name)
    return found


def live(scene: Scene) -> set[str]:
    """A store does all that a store can do. Returns the files of its pool."""
    with scene.open() as store:
        directory = StoreDirectory(store.path)
        with scene.follower(), closing(ServerFile(directory)) as server:
            store.create_topic("trades", "id BIGINT, price DOUBLE")
            store.create_topic("gone", "id BIGINT")
            with store.producer() as producer:
                for _ in range(3):
                    producer.send_batch("orders", [b"x" * 1000] * 50)
                producer.send_rows("trades", [{"id": 1, "price": 2.0}])
                producer.send("old", b"x")
                producer.flush()
            with commitlog.Reader(store.path, "orders", name="billing") as reader:
                next(reader)
                reader.commit()
            assert run("topics", store.path, "--trim", "orders", "--before", "1", "--yes").returncode == 0
            for topic in ("old", "gone"):
                assert run("topics", store.path, "--delete", topic, "--yes").returncode == 0
            write_forwarder(directory, ForwarderStatistics("kafka", "kafka://one", 1))
            server.write(ServerStatistics("commitlog://one/store", 1, {"billing": ClientTraffic()}))
            await_copy(scene)
            pool = directory.load().pool
            assert pool is not None
            in_pool = files_in(Path(pool.directory))
            shutil.copytree(store.path / "servers", scene.path / "servers")
    commitlog.backup(store.path, scene.path / "backup")
    shutil.copytree(store.path, scene.path / "damaged")
    shutil.rmtree(store.path / "servers")
    (scene.path / "servers").rename(store.path / "servers")
    mark_superseded(directory, 1, "one:4433")
    return in_pool


def damage(path: Path) -> None:
    """Damages a stopped store as a crash and a bad disk do, and lets a start mend it."""
    lane = StoreDirectory(path).lane_directory(0)
    lane.positions_file.unlink()
    lane.checkpoint_file.unlink()
    lane.abort_file.write_bytes(b"1")
    last = max(lane.commitlog.iterdir())
    end = len(last.read_bytes().rstrip(b"\0"))
    with last.open("r+b") as file:
        file.seek(end + 100)
        file.write(b"torn")
    (lane.commitlog / f"{int(last.name) + SEGMENT_BYTES:020d}").write_bytes(b"behind".ljust(SEGMENT_BYTES, b"\0"))
    first = min(lane.commitlog.iterdir())
    data = bytearray(first.read_bytes())
    data[2000] ^= 1
    first.write_bytes(data + b"surplus")
    shutil.rmtree(lane.consumequeue / "orders")
    (lane.consumequeue / "stranger").write_bytes(b"")
    commitlog.Store.open(path).close()


def test_each_file_is_on_the_page(places: dict[str, set[str]]) -> None:
    """Of a store that ran, its pool, its replica, its backup, and one that was mended."""
    of_store, of_pool = files_of("STORE", "STORE/lanes"), files_of("The pool")
    known = {place: of_pool if place == "pool" else of_store for place in places}
    unknown = {
        place: left
        for place, names in places.items()
        if (left := {name for name in names if not any(pattern(one).fullmatch(name) for one in known[place])})
    }
    assert not unknown
    everything = set().union(*places.values())
    unseen = {one for one in (*of_store, *of_pool) if not any(pattern(one).fullmatch(name) for name in everything)}
    assert unseen == PASSING


def test_each_place_of_the_code_is_on_the_page() -> None:
    """Every path that StoreDirectory and LaneDirectory have."""
    named = [*files_of("STORE", "STORE/lanes")]
    lane = LaneDirectory(Path("/s/lanes/0"), 0)
    paths = [value for value in vars(StoreDirectory("/s")).values() if isinstance(value, Path)]
    paths += [getattr(lane, name) for name in dir(LaneDirectory) if isinstance(getattr(LaneDirectory, name), property)]
    wanted = {str(path.relative_to("/s")) for path in paths if path != Path("/s")}
    assert len(wanted) > 20
    known = [pattern(one) for one in named]
    folders = {one.rpartition("/")[0].replace("<lane>", "0") for one in named}
    parents = {"/".join(folder.split("/")[:end]) for folder in folders for end in range(1, 6)}
    missing = {path for path in wanted if path not in parents and not any(form.fullmatch(path) for form in known)}
    assert not missing


def small_files() -> dict[str, re.Pattern[str]]:
    """Heading of a small JSON file → its names, as in `readers/NAME.json`."""
    headings = [heading for heading in TABLES if re.search(r"\.json$|/deleted$", heading)]
    return {
        heading: re.compile("(.*/)?" + re.sub("[A-Z]{2,}", "[^/]+", heading).replace(".json", r"\.json"))
        for heading in headings
    }


def test_the_fields_of_small_files(places: dict[str, set[str]]) -> None:
    """No file has a field that the page does not have.

    Each kind of file was seen, but for those that are there for a moment.
    """
    seen, wrong = set(), []
    for place, names in places.items():
        for name in names:
            heading = next((one for one, form in small_files().items() if form.fullmatch(name)), "")
            if re.search(r"/torn-.*\.json$", name):
                heading = "quarantine/cut.json"
            if heading:
                fields = {row[0] for row in TABLES[heading]}
                document = from_checked_json((Path(place) / name).read_bytes(), ())
                wrong += [f"{heading}: {field}" for field in document.keys() - fields]
                seen.add(heading)
            else:
                assert not name.endswith(".json"), name
    assert not wrong
    assert small_files().keys() - seen == {"trim.json", "replication.json", "copies/STORE-NAME.json"}


@pytest.mark.parametrize(
    ("heading", "kind", "more"),
    [
        ("store.json", StoreFacts, {"format"}),
        ("trim.json", TrimRequest, set()),
        ("replicas/NAME.json", ReplicaState, set()),
        ("replication.json", ReplicationTroubles, set()),
        ("forwarders/NAME.json", ForwarderStatistics, set()),
        ("last-backup.json", BackupNote, set()),
        ("servers/ID.json", ServerStatistics, set()),
        ("replica.json", ReplicaMark, set()),
        ("copies/STORE-NAME.json", CopyWitness, set()),
        ("quarantine/cut.json", Cut, set()),
    ],
)
def test_no_field_of_a_small_file_is_missing(heading: str, kind: Any, more: set[str]) -> None:
    """Also those that are not written as long as they say nothing."""
    fields = {field.name for field in dataclasses.fields(kind)} - {"other"} | more
    assert fields == {row[0] for row in TABLES[heading]}


def test_no_field_of_a_readers_file_is_missing(tmp_path: Path) -> None:
    """Of a reader that needs all of them."""
    lanes = LaneChoice(numbers=frozenset({0}), member=(0, 1))
    reader = NamedReader(
        "all", "0" * 32, {"orders": {0: 1}}, 1, "or.*", False, frozenset({"other"}), PYTHON, True, lanes,
        Client("one", ("or*",)), "a boot", host="10.0.0.7",
    )  # fmt: skip
    NamedReaders(StoreDirectory(tmp_path)).save(reader)
    document = from_checked_json((tmp_path / "readers/all.json").read_bytes(), ())
    assert document.keys() == {row[0] for row in TABLES["readers/NAME.json"]}


def dtype_of(heading: str, order: str) -> np.dtype[np.void]:
    """The table of a binary file as a dtype of numpy."""
    kinds = {"i32": "i4", "u32": "u4", "i64": "i8", "u64": "u8", "host": "V8", "bytes[8]": "V8", "bytes[16]": "V16"}
    names, offsets = [row[0] for row in TABLES[heading]], [int(row[2]) for row in TABLES[heading]]
    formats = [kinds[row[1]] for row in TABLES[heading]]
    own = [form if form.startswith("V") else order + form for form in formats]
    return np.dtype({"names": names, "formats": own, "offsets": offsets})


def places_of(code: np.dtype[np.void]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Each field with its type and its offset."""
    assert code.fields is not None
    return {name: (field[0], field[1]) for name, field in code.fields.items()}


@pytest.mark.parametrize(("heading", "code"), [("A segment", HEAD_V4), ("A consume queue", ENTRY)])
def test_the_fields_of_a_record_and_of_an_entry(heading: str, code: np.dtype[np.void]) -> None:
    """Their names, widths and offsets."""
    page = dtype_of(heading, ">")
    assert page.names == code.names
    assert places_of(page) == places_of(code)
    assert page.itemsize == code.itemsize


def test_the_fields_of_positions(tmp_path: Path) -> None:
    """A file of the code is read with the page's table."""
    store_id = "00112233445566778899aabbccddeeff"
    wanted = Positions(11, 14, 13, 12, 15, True, -1)
    PositionsFile(LaneDirectory(tmp_path, 7), store_id, DISK).store(wanted)
    data = (tmp_path / "positions").read_bytes()
    page = dtype_of("positions", "<")
    (slot,) = np.frombuffer(data, page, 1, SLOT_BYTES)  # sequence 1
    assert page.names is not None
    said = {name: slot[name] for name in page.names}
    assert {name: said.pop(name) for name in list(said) if hasattr(wanted, name)} == dataclasses.asdict(wanted)
    assert said.pop("magic").tobytes() == b"CLPOS\0\0\x03"
    assert said.pop("store_id").tobytes().hex() == store_id
    assert (said.pop("sequence"), said.pop("lane")) == (1, 7)
    assert said.keys() == {"crc32"}
    assert not data[SLOT_BYTES + page.itemsize :].strip(b"\0")


def test_the_fields_of_a_checkpoint(tmp_path: Path) -> None:
    """A file of the code is read with the page's table."""
    wanted = StoreCheckpoint(1, 2, 3, 4, 5)
    wanted.save(tmp_path / "checkpoint", DISK)
    data = (tmp_path / "checkpoint").read_bytes()
    (fields,) = np.frombuffer(data, dtype_of("checkpoint", ">"), 1)
    assert {name: fields[name] for name in fields.dtype.names or ()} == dataclasses.asdict(wanted)
    assert len(data) == STORE_CHECKPOINT_BYTES


def test_the_words_of_the_control_region() -> None:
    """All words, in their order, and where the blocks begin."""
    page = {heading: [row[:4] for row in TABLES[heading]] for heading in BLOCKS}
    code = {
        block: [[name, str(word.index), str(word.width), word.writer] for name, word in words.items()]
        for block, words in BLOCKS.items()
    }
    assert page == code
    blocks = [
        ["Header", "0", "1", str(HEADER_WORDS)],
        ["Stage", str(STAGES_AT), str(STAGE_ROWS), str(STAGE_ROW_WORDS)],
        ["Lane", str(LANES_AT), str(LANE_ROWS), str(LANE_ROW_WORDS)],
    ]
    assert TABLES["control"] == blocks
    assert f"{CONTROL_BYTES:,} bytes" in PAGE.read_text()
    assert struct.calcsize("Q") * (LANES_AT + LANE_ROWS * LANE_ROW_WORDS) == CONTROL_BYTES


def test_the_bytes_of_locks() -> None:
    """Which byte of `control` the supervisor and each stage lock."""
    page = {row[0]: row[2] for row in TABLES["Locks"]}
    assert page == {"lane n": "n", "supervisor": str(stage_at(""))} | {name: str(stage_at(name)) for name in ALL_STAGES}
