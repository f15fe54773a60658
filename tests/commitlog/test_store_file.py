"""`store.json` of older, present and future versions.

What others have written is kept, and damage is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import commitlog
from commitlog import errors
from commitlog.config import Config
from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.store_directory import PoolPlace, StoreDirectory, StoreFacts
from tests.faults.bench import bench

POOL = {"directory": "/dev/shm/commitlog-0-x", "device": 5, "boot_id": "b", "uid": 0}
TODAY: dict[str, Any] = {
    "format": 1,
    "id": "0123456789abcdef" * 2,
    "segment_bytes": 1 << 16,
    "generation": 3,
    "pool": POOL,
    "config": Config().to_json(),
}
TOMORROW: dict[str, Any] = {
    "compression": {"codec": "zstd"},
    "pool": {**POOL, "huge_pages": True},
    "config": {"store": {"segment_bytes": 0, "tiers": ["nvme"]}, "replication": {"factor": 3}, "profile": "fast"},
}


def each(*values: Any) -> tuple[Any, ...]:
    return values


DAMAGED: list[dict[str, Any]] = [
    *({"format": version} for version in each("1", "2", True, 1.0, 0, -1, None, [1])),
    *({"id": identity} for identity in each("", "x" * 32, "0x" + "1" * 30, "1_" * 16, "A" * 32, 5, None)),
    *({"segment_bytes": size} for size in each(0, 3000, 1 << 31, "65536", True, 65536.0, None)),
    *({"generation": number} for number in each(-1, 1 << 63, "3", True, 3.0, None)),
    *({"pool": pool} for pool in each(5, "x", [], False, {}, {"directory": "/x"})),
    *({"pool": {**POOL, name: value}} for name in POOL for value in each(None, True, 1.5, [])),
    *({"pool": {**POOL, **pool}} for pool in each({"directory": "here"}, {"device": "5"}, {"device": -1}, {"uid": -1})),
    *({"config": config} for config in each(None, [], "x", {"store": 5}, {"store": {"max_lanes": "16"}})),
    *({"config": {"store": store}} for store in each({"record_crc": 1}, {"max_lanes": True}, {"write_path": None})),
]


def loads(values: Any) -> StoreFacts:
    """What is read from a file without a checksum, such as older packages have written."""
    return StoreFacts.from_bytes(orjson.dumps(values), Path("/s/store.json"))


def sealed(values: Any) -> StoreFacts:
    return StoreFacts.from_bytes(to_checked_json(values), Path("/s/store.json"))


def test_what_is_damaged_is_said(subtests: pytest.Subtests) -> None:
    """Each field of a wrong type or value, or missing; files that are no object at all."""
    for change in DAMAGED:
        with (
            subtests.test(str(change)),
            pytest.raises(errors.StoreDamaged, match=f"{next(iter(change))}.*commitlog dump"),
        ):
            loads(TODAY | change)
    for name in ("format", "id", "segment_bytes"):
        with subtests.test(f"no {name}"), pytest.raises(errors.StoreDamaged, match=name):
            loads({key: value for key, value in TODAY.items() if key != name})
    for data in (b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff", b"[" * 5000, b"\0" * 500):
        with subtests.test(str(data[:9])), pytest.raises(errors.StoreDamaged):
            StoreFacts.from_bytes(data, Path("/s/store.json"))


def test_another_format_is_too_new(subtests: pytest.Subtests) -> None:
    """Whatever else it has in its file."""
    for more in ({}, {"pool": "elsewhere", "id": 5}):
        with subtests.test(str(more)), pytest.raises(errors.StoreTooNew, match="upgrade commitlog"):
            loads(TODAY | {"format": 2} | more)


def test_yesterdays_store_is_taken() -> None:
    """Without what came later: no pool yet, no configuration, fewer knobs and sections."""
    assert loads({name: TODAY[name] for name in ("format", "id", "segment_bytes")}) == StoreFacts(TODAY["id"], 1 << 16)
    assert loads(TODAY | {"pool": None}).pool is None
    facts = loads(TODAY | {"config": {"store": {"max_lanes": 7}}})
    assert Config.from_json(facts.config).store.max_lanes == 7
    assert Config.from_json(facts.config).retention == Config().retention


def test_tomorrows_fields_are_kept() -> None:
    """Ignored by who reads, and there again when it is saved, beside what has changed."""
    facts = sealed(TODAY | TOMORROW)
    assert facts.pool is not None
    assert (facts.pool.directory, facts.pool.uid) == (POOL["directory"], 0)
    assert Config.from_json(facts.config) == Config()
    assert from_checked_json(facts.to_bytes(), ()) == TODAY | TOMORROW
    assert StoreFacts.from_bytes(facts.to_bytes(), Path("/s/store.json")) == facts
    assert sealed(TODAY) == loads(TODAY)
    assert loads(TODAY).pool == PoolPlace(**POOL)  # type: ignore[arg-type]


def test_a_store_of_tomorrow_runs(tmp_path: Path) -> None:
    """Its messages are read, and it is started and written to.

    Only pool and configuration are those of the last start.
    """
    path = tmp_path / "store"
    with bench(path) as made:
        made.producer().send("t", b"one")
        made.settle()
        made.stop()
    file = StoreDirectory(path).file
    today = orjson.loads(file.read_bytes())
    config = {**today["config"], "replication": {"factor": 3}, "profile": "fast"}
    tomorrow = today | {
        "compression": {"codec": "zstd"},
        "config": config,
        "pool": {**POOL, "huge_pages": True},
    }
    del tomorrow["crc32"]
    file.write_bytes(to_checked_json(tomorrow))
    with commitlog.Reader(path) as reader:
        assert [message.value for message in reader] == [b"one"]
    with bench(path) as made:
        made.producer().send("t", b"two")
        made.settle()
        with commitlog.Reader(path) as reader:
            assert [message.value for message in reader] == [b"one", b"two"]
        made.stop()
    saved = orjson.loads(file.read_bytes())
    assert saved["compression"] == {"codec": "zstd"}
    assert saved["config"] == today["config"]
    assert saved["generation"] > today["generation"]
