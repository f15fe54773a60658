"""Backups of a store that is written to all the time, restored and compared with what was sent."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CommitLogError
from commitlog.inspecting.verify import verify_store
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from tests.crash.accounts import check, read_notes, read_store, retired_below
from tests.crash.scene import PRODUCERS_A_WRITER, SETTINGS, Scene
from tests.crash.torture import DELETING
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools

KINDS = ("plain", "threads")
READER, TOPIC = "follower", "topic-0"
NEW_BYTES = 4 * 6_000
"""By so much more in four lanes, one of them has a whole record more (writer.py)."""


@contextlib.contextmanager
def following(store: Path) -> Iterator[None]:
    """A named reader in a thread, which commits what it reads, through all restarts."""
    stopped = threading.Event()

    def follow() -> None:
        while not stopped.is_set():
            with contextlib.suppress(CommitLogError), commitlog.Reader(store, topic=TOPIC, name=READER) as reader:
                for number, _ in enumerate(reader):
                    if stopped.is_set():
                        return
                    if number % 500 == 0:  # each commit waits for the disk, and retention waits for the reader
                        reader.commit()
                reader.commit()
            stopped.wait(0.01)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def flushed_of(store: Path) -> dict[int, int]:
    """How far each lane is flushed now."""
    view = StoreView(store)
    try:
        return {lane: view.limits(lane).flushed for lane in view.lanes()}
    finally:
        view.close()


def check_backup(made: Path, flushed: dict[int, int], notes: Path, place: Path, killed: int) -> None:
    """Starts a copy of a backup, and looks for everything that was sent below its positions.

    `killed` writers, and those that are halted, may have sent messages without a note.
    """
    shutil.copytree(made, place)
    before = flushed_of(place)
    assert all(before[lane] >= least for lane, least in flushed.items()), (before, flushed)
    _check_reader(place)
    with commitlog.Store.open(place, SETTINGS) as store:
        assert store.close().drained
    assert flushed_of(place) == before, "a start found something to repair"
    verified = verify_store(place)
    assert verified.good, verified
    assert not list(place.glob("lanes/*/quarantine/*"))
    sent = [note for note in read_notes(list(notes.iterdir())) if note[3] < before.get(note[0], 0)]
    deaths = PRODUCERS_A_WRITER * (killed + len(KINDS))
    check(sent, read_store(place), deaths, retired_below(place))
    shutil.rmtree(place)


def _check_reader(store: Path) -> None:
    """No named reader is further than the log."""
    view = StoreView(store)
    try:
        if READER not in NamedReaders(view.directory).names():
            return
        index = TopicIndex(view)
        index.refresh()
        reader = NamedReaders(view.directory).load(READER)
        ends = {lane: queue.end for lane, queue in index.ranges(TOPIC).items()}
        assert all(offset <= ends.get(lane, 0) for lane, offset in reader.offsets.get(TOPIC, {}).items()), (
            reader,
            ends,
        )
    finally:
        view.close()


@pytest.mark.nightly
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("rounds", [1, 100])
def test_backups_under_full_load(rounds: int, tmp_path: Path) -> None:
    """Writers, a named reader and retention go on; now and then all is killed before a backup.

    Most backups go on with an earlier one, some are the first. The writers are halted only while a
    backup is looked at.
    """
    copied = removed = first = reached = 0
    made, notes = tmp_path / "backup", tmp_path / "notes"
    with Scene(tmp_path, random.Random(rounds), kinds=KINDS, more=DELETING) as scene, following(scene.path):
        for number in range(rounds):
            scene.goes_on(100)
            wait_until(partial(_has_more, scene.path, reached), "more to be flushed")
            if number % 10 == 9:
                shutil.rmtree(made)
            first += not made.exists()
            flushed, reports = flushed_of(scene.path), list[commitlog.BackupReport]()
            reached = sum(flushed.values())
            make = partial(_make, scene.path, made, reports)
            if number % 4 == 2:
                scene.kill_everything(make)
            else:
                make()
            with scene.writers_halted():
                (report,) = reports
                assert report.good, report
                assert report.copied_messages > 0
                copied, removed = copied + report.copied_messages, removed + report.removed_segments
                check_backup(made, flushed, notes, tmp_path / "restored", scene.kills["producer"])
        scene.goes_on()
        scene.finish()
    print(f"{rounds} backups, {first} of them first ones, {copied:,} messages, {removed:,} segments removed")


def _has_more(store: Path, reached: int) -> bool:
    return sum(flushed_of(store).values()) > reached + NEW_BYTES


def _make(store: Path, destination: Path, reports: list[commitlog.BackupReport]) -> None:
    reports.append(commitlog.backup(store, destination))
