"""`commitlog trim`: deletes old segments of running, stopped and killed stores."""

from __future__ import annotations

import os
import re
import signal
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.client.reader import Reader
from commitlog.disk import locks
from commitlog.disk.store_directory import StoreDirectory
from commitlog.disk.trim_request import TrimRequest
from commitlog.inspecting.verify import verify_store
from commitlog.reading.segment_trim import KeptSegments, kept_segments
from commitlog.reading.topic_index import current_index
from commitlog.reading.view import StoreView
from tests.builders.hand_made import HandMadeStore, small_store
from tests.cli.test_cli import config, running
from tests.command_line import run
from tests.crash.scene import pid_of
from tests.faults.supervisor import patched_stages

__all__ = ["config"]

SEGMENT = 65536
SETTINGS = {"store": {"segment_bytes": SEGMENT}, "retention": {"reserved_hours": 0}}


def segments(path: Path) -> list[int]:
    return sorted(int(file.name) for file in path.glob("lanes/0/commitlog/*"))


def send(path: Path, count: int = 3000) -> None:
    with commitlog.Producer(path) as producer:
        for first in range(0, count, 100):
            producer.send_batch("orders", [b"%d" % number for number in range(first, first + 100)])
        producer.flush()


def test_a_running_store(tmp_path: Path, config: Path) -> None:
    """It asks first. The last segment stays, and so does what a named reader needs."""
    path = tmp_path / "store"
    with running(path, config):
        send(path)
        with Reader(path, "orders", name="billing") as reader:
            for _ in range(1000):
                next(reader)
            reader.commit()
        before = segments(path)
        trim = ("trim", path, "--before", "1 ms ago")
        assert run(*trim, given=b"n\n").returncode == 1
        assert segments(path)[: len(before)] == before  # one more may have been made ahead
        done = run(*trim, given=b"y\n")
        assert re.search(
            rb"deleted (1 segment|2 segments), .* bytes; \d+ stay: 1 the last of a lane, (\d+ not that old, )?"
            rb"\d+ kept for named readers or replicas\nothers could go, and are kept for named readers",
            done.stdout,
        )
        assert next(iter(Reader(path, "orders"))).offset <= 1000
        done = run(*trim, "--yes", "--force")
        assert (done.returncode, b"others" in done.stdout) == (0, False)
        assert b"; 1 stay: 1 the last of a lane\n" in done.stdout
        assert segments(path)[0] > 1000 * 110 // SEGMENT * SEGMENT
        assert [message.value for message in Reader(path, "orders")][-1] == b"2999"
    assert verify_store(path).good


def asked(store: HandMadeStore, *options: str) -> str:
    """What is said before "yes" is asked for; nothing is deleted."""
    before = sorted(store.path.rglob("commitlog/*"))
    done = CliRunner().invoke(app, ["trim", str(store.path), *options], input="n\n")
    assert sorted(store.path.rglob("commitlog/*")) == before
    return done.output


def test_it_says_what_would_go(tmp_path: Path) -> None:
    """Segments, messages and times are those that then go. The last segment of a lane is not."""
    store = small_store(tmp_path / "store", rows=400)
    records = [record for lane in store.lanes.values() for record in lane.records]
    size = store.segment_bytes
    gone = [record for record in records if record.physical_offset < 3 * size]
    begin, end = (
        datetime.fromtimestamp(choose(record.store_timestamp for record in gone) / 1000).astimezone()
        for choose in (min, max)
    )
    assert asked(store, "--before", (end + timedelta(seconds=1)).isoformat()).splitlines()[:2] == [
        f"6 segments of {store.path} would go, {6 * size:,} bytes of disk",
        f"    {len(gone):,} messages, {sum(record.total_size for record in gone):,} bytes, "
        f"stored {begin.isoformat(' ', 'seconds')} to {end.isoformat(' ', 'seconds')}",
    ]
    count = len(list(store.path.rglob("commitlog/*")))
    assert (
        asked(store, "--keep-bytes", str((count - 6) * size)).splitlines()[:2]
        == asked(store, "--before", (end + timedelta(seconds=1)).isoformat()).splitlines()[:2]
    )
    assert asked(store, "--keep-bytes", "0").startswith(f"{count - 2} segments of ")
    assert asked(store, "--keep-bytes", "1TB").startswith(
        "nothing would go: only the last segment of each lane is left, or all have no more than 1,000"
    )
    assert asked(store, "--before", "2020-01-01").startswith(
        "nothing would go: no segment besides the last of each lane is older than 2020"
    )
    with Reader(store.path, "orders", name="billing"):
        pass
    assert "; what a named reader has not read stays" in asked(store, "--keep-bytes", "0")
    assert "reader" not in asked(store, "--keep-bytes", "0", "--force")


def test_segments_that_the_dispatcher_has_not_reached(tmp_path: Path) -> None:
    """They stay, and nobody says that there are none."""
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 13)
    lane = store.lane(0)
    for row in range(400):
        lane.append("orders", b"%d" % row)
    lane.dispatch(10)
    lane.publish()
    behind = len(segments(store.path)) - 1
    assert asked(store, "--keep-bytes", "0").startswith(
        f"nothing would go: {behind} segments can go only when the consume queues have their messages; `commitlog health "
    )
    with current_index(StoreView(store.path)) as index:
        kept = kept_segments(index, TrimRequest(store.id, keep_bytes=0))
    assert kept == KeptSegments(last=1, wanted=0, held=0, unindexed=behind)


@pytest.mark.nightly
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_store_that_does_not_run(tmp_path: Path, config: Path, is_killed: bool) -> None:
    """The command runs the stages itself, with the configuration of their last start."""
    path = tmp_path / "store"
    config.write_text(config.read_text() + "[retention]\nreserved_hours = 0\n")
    with running(path, config) as process:
        send(path)
        if is_killed:
            os.kill(pid_of(path, ""), signal.SIGKILL)
            process.wait(60)
    settings = StoreDirectory(path).load().config
    done = run("trim", path, "--keep-bytes", "200kB", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"deleted ")
    assert len(segments(path)) * SEGMENT <= 200_000
    assert StoreDirectory(path).load().config == settings
    assert not StoreDirectory(path).trim_file.exists()
    assert verify_store(path).good


def test_a_store_that_somebody_starts_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of the other command do it."""
    looked, known = [], locks.is_running

    def is_running(directory: StoreDirectory, pool: Path | None, stage: str = "") -> bool:
        looked.append(directory)
        return len(looked) > 1 and known(directory, pool, stage)

    with commitlog.Store.open(tmp_path / "store", SETTINGS) as store:
        send(store.path)
        before = segments(store.path)
        monkeypatch.setattr(locks, "is_running", is_running)
        done = CliRunner().invoke(app, ["trim", str(store.path), "--keep-bytes", "200kB", "--yes"])
        assert looked
        assert done.exit_code == 0, done.exception
        assert done.stdout.startswith("deleted ")
        assert segments(store.path)[0] > before[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), b"give --before TIME or --keep-bytes SIZE"),
        (("--before", "1 day ago", "--keep-bytes", "1"), b"give --before TIME or --keep-bytes SIZE"),
        (("--before", "latest"), b"'latest' is not a time; give '3 days ago'"),
        (("--before", "yesterdy"), b"'yesterdy' is not a time; give '3 days ago'"),
        (("--before", "9999-01-01"), b"'9999-01-01' is in the future"),
        (("--keep-bytes", "10 apples"), b"'--keep-bytes': '10 apples' is no size"),
        (("--keep-bytes", "10i"), b"'--keep-bytes': '10i' is no size"),
    ],
    ids=str,
)
def test_what_can_not_be_meant(tmp_path: Path, options: tuple[str, ...], reason: bytes) -> None:
    store = small_store(tmp_path / "store")
    done = run("trim", store.path, *options)
    assert done.returncode > 0
    assert reason in done.stderr
    assert b"no store here" in run("trim", tmp_path / "nowhere", "--keep-bytes", "1").stderr


@pytest.mark.nightly
def test_segments_that_the_system_does_not_let_go(tmp_path: Path) -> None:
    """The command does not wait for them; it and `health` say where the reason is."""
    path = tmp_path / "store"
    with patched_stages("tests.faults.stage:on_a_keeping_disk"), commitlog.Store.open(path, SETTINGS):
        send(path)
        done = run("trim", path, "--keep-bytes", "1", "--yes")
        assert (done.returncode, b"can't be deleted" in done.stderr) == (1, True)
        assert b"not-deleted" in run("health", path).stdout
        assert not (path / "trim.json").exists()
