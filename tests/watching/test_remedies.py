"""What health says to do: commands to paste, and what was looked at."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import commitlog
from commitlog.client.statistics import RETENTION_WORDS, RetentionStatistics
from commitlog.config import Config, RetentionConfig, StoreConfig
from commitlog.disk.store_directory import StoreDirectory
from commitlog.reading.reader_states import ReaderState
from commitlog.shm.counters import RetentionFlag
from commitlog.watching.health import CODES, Health, HealthLimits, health
from commitlog.watching.health_checks import checks
from commitlog.watching.remedies import CERTIFICATES
from commitlog.watching.snapshot import StoreSnapshot
from tests.builders.hand_made import small_store
from tests.watching.health_scene import (
    LIMITS,
    ROOM,
    codes,
    expect,
    reasons_of,
)


def test_a_full_disk_names_the_trim_that_is_enough(good: StoreSnapshot) -> None:
    """It never takes more than half of the store, as others may have filled the disk."""
    gb = 10**9
    (lane,) = good.statistics.lanes
    warned = RetentionStatistics(0, 0, 0, 95.0, (RETENTION_WORDS[RetentionFlag.DISK_REFUSES],))
    for used, free, stored, kept in (
        (950, 50, 200, "100GB"),  # to 85 % it is 100 GB
        (95, 5, 18, "9GB"),  # half of it is not enough
        (950, 50, 800, "700GB"),
    ):
        facts = replace(good.statistics, retention=warned, lanes=(replace(lane, first=0, wrote=stored * gb),))
        space = replace(ROOM, disk_used=used * gb, disk_free=free * gb)
        config = Config(retention=RetentionConfig(disk_enough_bytes=0))
        found = reasons_of(replace(good, statistics=facts, space=space, config=config), LIMITS)
        (reason,) = [reason for reason in found if reason.code == "disk-refuses"]
        assert reason.command == f"commitlog trim {good.statistics.path} --keep-bytes {kept}"
        assert f"[retention] max_bytes = {int(kept[:-2]) * gb}, or reserved_hours = 36, and reload" in reason.way_out


def test_a_full_disk_names_no_trim_that_takes_nothing(good: StoreSnapshot) -> None:
    """Each lane has its last segment only, which stays: others have filled the disk."""
    size, path = good.statistics.segment_bytes, good.statistics.path
    (lane,) = good.statistics.lanes
    warned = RetentionStatistics(0, 0, 0, 95.0, (RETENTION_WORDS[RetentionFlag.DISK_REFUSES],))
    full = replace(good, space=replace(ROOM, disk_used=950, disk_free=50))
    for first, wrote, command in (
        (0, 0, f"df -h {path}"),
        (size, 2 * size, f"df -h {path}"),
        (size, 2 * size + 1, f"commitlog trim {path} --keep-bytes 65kB"),
    ):
        facts = replace(good.statistics, retention=warned, lanes=(replace(lane, first=first, wrote=wrote),))
        (reason,) = [one for one in reasons_of(replace(full, statistics=facts), LIMITS) if one.code == "disk-refuses"]
        assert reason.command == command


def test_paths_and_names_are_quoted_for_a_shell(good: StoreSnapshot) -> None:
    path = "/data/it's my store"
    facts = replace(good.statistics, path=path, running=False)
    reader = ReaderState("a b", False, "PYTHON", 86_400_000, {"t": {0: 0}}, {"t": {0: 5}})
    (stopped,) = reasons_of(replace(good, statistics=facts))
    assert shlex.split(stopped.command) == ["commitlog", "run", path]
    (still,) = reasons_of(replace(good, statistics=replace(facts, running=True), readers=(reader,)))
    assert shlex.split(still.command) == ["commitlog", "readers", path, "--remove", "a b"]


def test_a_store_in_each_state(good: StoreSnapshot) -> None:
    """What to do differs, and each has a command."""
    stopped = replace(good.statistics, running=False)
    for changes, said in (
        ({"superseded_by": "db2:4440 has epoch 7"}, f"commitlog rejoin {stopped.path} --from HOST:PORT {CERTIFICATES}"),
        ({"backup": True}, f"commitlog verify {stopped.path}"),
        ({"killed": True}, f"commitlog run {stopped.path}"),
        ({"replica_of": "db:4440", "replica_complete": True}, f"commitlog promote {stopped.path}"),
        ({"replica_of": "db:4440"}, f"commitlog replica {stopped.path} --from db:4440 {CERTIFICATES}"),
        ({"running": True, "replica_of": "db:4440", "replica_behind_ms": 99_000}, f"commitlog stat {stopped.path}"),
        ({"running": True, "starting": True}, f"commitlog logs {stopped.path} --stage supervisor"),
        ({"running": True, "closing": True}, f"commitlog run {stopped.path}"),
        (
            {"running": True, "supervisor_silent_ms": 9_000.0},
            f'kill -9 "$(cat {stopped.path}/lock)"; commitlog run {stopped.path}',
        ),
    ):
        facts = replace(stopped, **changes)
        assert reasons_of(replace(good, statistics=facts))[0].command == said, changes


def test_a_backup_says_that_it_is_one(tmp_path: Path) -> None:
    """Also while a run of the backup was interrupted, which leaves the traces of a killed store."""
    small_store(tmp_path / "store")
    commitlog.backup(tmp_path / "store", tmp_path / "backup")
    lane = StoreDirectory(tmp_path / "backup").lane_directory(0)
    for interrupted in (False, True):
        if interrupted:
            lane.abort_file.touch()
        reason = expect(tmp_path / "backup", "stopped")
        assert "it is a backup, and was never started; a start makes it a store of its own" in reason.said
        assert codes(tmp_path / "backup") == {"stopped"}


def test_a_shared_memory_without_room_for_another_producer(good: StoreSnapshot) -> None:
    """It is said before the next one gets NoFreeLane, also where 6 % are free."""
    (lane,) = good.statistics.lanes
    lanes = tuple(replace(lane, lane=number, producer=4711, available_buffers=3) for number in range(5))
    lane_bytes = 3 * good.statistics.segment_bytes
    room = replace(ROOM, shared_memory_used=94 * lane_bytes // 6, shared_memory_free=lane_bytes - 1)
    full = replace(good, statistics=replace(good.statistics, lanes=lanes), space=room)
    (reason,) = reasons_of(full)
    assert reason.code == "shared-memory-nearly-full"
    assert f"another producer takes {lane_bytes:,}" in reason.text
    assert re.fullmatch(r"mount -o remount,size=\d+m /dev/shm", reason.command)
    one_is_free = (replace(lanes[0], producer=0), *lanes[1:])
    assert health(replace(full, statistics=replace(full.statistics, lanes=one_is_free))) == Health("good")
    assert health(replace(full, space=replace(room, shared_memory_free=lane_bytes))) == Health("good")
    for store in (StoreConfig(max_lanes=5), StoreConfig(write_path="direct")):
        assert health(replace(full, config=Config(store=store))) == Health("good")


def test_all_checks_are_explained(good: StoreSnapshot) -> None:
    """Every code is in one of them. A store that is down has no stages to look at."""
    found = checks(good, HealthLimits())
    assert sorted(code for check in found for code in check.codes) == sorted(CODES)
    assert {check.verdict for check in found} == {"ok"}
    assert all(bool(check.limit) == bool(check.source) for check in found)
    knobs = [found for check in found for found in re.findall(r"\[(\w+)\] (\w+)", check.source)]
    assert all(hasattr(getattr(Config(), section), knob) for section, knob in knobs)
    assert len(knobs) >= 3
    down = replace(good, statistics=replace(good.statistics, running=False, killed=True))
    verdicts = {code: check.verdict for check in checks(down, HealthLimits()) for code in check.codes}
    assert (verdicts["killed"], verdicts["stage-gone"], verdicts["disk-nearly-full"]) == ("down", "not looked at", "ok")
    full = replace(good, space=replace(ROOM, disk_used=99, disk_free=1))
    for limits, verdict in (
        (HealthLimits(), "degraded"),
        (HealthLimits(ignored=frozenset({"disk-nearly-full"})), "ignored"),
    ):
        (check,) = [check for check in checks(full, limits) if "disk-nearly-full" in check.codes]
        assert (check.verdict, check.source) == (verdict, "--full-percent")
        assert check.seen == "the disk is 99.0 % full, 1 bytes free"
