"""Writers, stages, the supervisor and readers of accepted messages are killed all the time.

Each reader gets every message once, in its order, as the log has it in the end: none is torn, none
is what another message has left in a buffer that was used again.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.client.reader import Reader
from tests.crash.follower import note_of, read_notes
from tests.crash.scene import Scene
from tests.nightly import with_nightly
from tests.waiting import wait_until

pytestmark = pytest.mark.leaves_pools

VICTIMS = ("follower", "follower", "committer", "flusher", "writer", "supervisor", "everything")


class Followers:
    """Programs that follow the store, each with a file of notes."""

    def __init__(self, store: Path, directory: Path, count: int) -> None:
        directory.mkdir()
        self.files = [directory / f"{number}.txt" for number in range(count)]
        self._store = store
        self._running = {file: self._start(file) for file in self.files}

    def _start(self, file: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "tests.crash.follower", str(self._store), str(file)])

    def kill_one(self, chance: random.Random) -> None:
        """Kills one; another goes on in its place."""
        file = chance.choice(self.files)
        self.check_all_run()
        self._end(self._running[file])
        self._running[file] = self._start(file)

    def check_all_run(self) -> None:
        assert [program.poll() for program in self._running.values()] == [None] * len(self.files)

    @staticmethod
    def _end(program: subprocess.Popen[bytes]) -> None:
        program.kill()
        program.wait()

    def close(self) -> None:
        for program in self._running.values():
            self._end(program)


@contextlib.contextmanager
def followed(scene: Scene, directory: Path) -> Iterator[Followers]:
    followers = Followers(scene.path, directory / "followers", 2)
    try:
        yield followers
    finally:
        followers.close()


@pytest.mark.parametrize(("way", "kills"), with_nightly([("pool", 10)], [("pool", 150), ("write_direct", 60)]))
@pytest.mark.timeout(1800)
def test_followers_get_every_accepted_message_once(tmp_path: Path, way: str, kills: int) -> None:
    chance = random.Random(11)
    killed: Counter[str] = Counter()
    with Scene(tmp_path, chance, way, kinds=("plain", "asyncio")) as scene, followed(scene, tmp_path) as followers:
        for number in range(kills):
            scene.goes_on()
            victim = VICTIMS[number % len(VICTIMS)]
            killed[victim] += 1
            if victim == "follower":
                followers.kill_one(chance)
            elif victim == "writer":
                scene.kill_writer()
            elif victim == "supervisor":
                scene.kill_supervisor()
            elif victim == "everything":
                scene.kill_everything()
            else:
                scene.kill_stages([victim])
            followers.check_all_run()
        assert scene.finish() > 50
        with Reader(scene.path) as reader:
            log = sorted(map(note_of, reader))
        for file in followers.files:
            wait_until(lambda file=file: len(read_notes(file)) >= len(log), "a follower to come to the end")  # type: ignore[misc]
        followers.check_all_run()
    for file in followers.files:
        notes = read_notes(file)
        assert sorted(notes) == log
        assert [note[:3] for note in sorted(notes, key=lambda note: note[:2])] == [note[:3] for note in log]
    assert set(killed) == set(VICTIMS)
