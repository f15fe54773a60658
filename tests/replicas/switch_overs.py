"""Switch-overs at random, for `scripts/torture --switch-overs N` and the tests.

A store and its copy, a line between them, and somebody who sends all the while. The replica, the
HAService and the whole store are killed; the line is cut, is silent, or turns a bit over; the copy
loses files, or is put back as it was before. Then the store ends, the copy is promoted, and the old
store rejoins as the next copy. Promotions and rejoinings are killed, too.

Each switch-over ends with the account: what was acknowledged as replicated is in the promoted store
once, and what else was accepted is there, or in the quarantine of the old one. Only where a copy
was damaged, or an older one, at its promotion may something be missing, and then the promotion has
to say so.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import CommitLogError, ReplicaRefused
from commitlog.inspecting.verify import verify_store
from commitlog.replicas.promotion import promote
from commitlog.replicas.rejoining import rejoin
from commitlog.replicas.tls import Credentials
from commitlog.shm.region import base_directory
from tests.crash.scene import kill, pid_of
from tests.ports import free_port
from tests.replicas import dying
from tests.replicas.line import Line, line
from tests.replicas.rejoining import quarantined, values_of
from tests.replicas.scene import ReplicaCommand, Scene, kill_all
from tests.replicas.sender import Sender
from tests.serving.asking import Certificates
from tests.waiting import wait_until

A_STORY = 8
"""So many switch-overs have the same directories, which grow with each."""
_LAST_POINT = 40
"""A command that is killed dies before one of so many changes of the disk."""
_SECTIONS = {"supervisor": {"start_wait_ms": 60_000}}
_PATIENCE_SECONDS = 180.0


@dataclass
class Counts:
    """What was done. `replicated` are messages that were acknowledged as that."""

    switch_overs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    replicated: int = 0

    def take(self, other: Counts) -> None:
        self.switch_overs += other.switch_overs
        self.kills += other.kills
        self.events += other.events
        self.accepted += other.accepted
        self.replicated += other.replicated


class Story:
    """A store and its copy that change places again and again, until `close`."""

    def __init__(self, directory: Path, cable: Line, port: int, chance: random.Random) -> None:
        self._chance, self._cable, self.counts = chance, cable, Counts()
        self._scene = Scene(directory, Certificates(directory), directory / "templates", port, dict(_SECTIONS))
        self.primary, self.copy = directory / "one", directory / "two"
        self._accepted: list[bytes] = []
        self._replicated: list[bytes] = []
        self._known = 0
        """How many accepted messages are of earlier switch-overs."""
        self.is_damaged = False
        """Whether a damaged copy was promoted: then the story is over."""
        self._store = self._open()
        self._sender = self._new_sender()
        self._command = self._follow()

    def close(self) -> None:
        self._command.kill()
        with contextlib.suppress(CommitLogError):
            self._store.close()
        self._sender.end()

    def _open(self) -> commitlog.Store:
        return self._scene.open(self.primary, housekeeping_ms=2_000)

    def _follow(self) -> ReplicaCommand:
        arguments = self._scene.arguments(self.copy, self._cable.port)
        return ReplicaCommand([*arguments, "--name", "copy"], self.copy)

    def _new_sender(self) -> Sender:
        return Sender(self.primary, self._chance.getrandbits(32), self._accepted, self._replicated)

    def _goes_on(self) -> None:
        """Waits until more messages are replicated."""
        wanted = len(self._replicated) + self._chance.randrange(1, 200)

        def is_there() -> bool:
            assert self._command.process.poll() is None, self._command.said()[-2_000:]
            return len(self._replicated) >= wanted

        wait_until(is_there, "messages are replicated", patience=_PATIENCE_SECONDS)

    # ---- one switch-over ------------------------------------------------------------------------

    def switch_over(self) -> None:
        for _ in range(self._chance.randrange(1, 4)):
            self._goes_on()
            self._do(self._chance.choice(_TROUBLES))
        older = self._copy_of_copy() if self._chance.random() < 0.1 else None
        self._goes_on()
        if self._chance.random() < 0.6:
            self._kill_store()
        else:
            self._store.close()
        self._sender.end()
        if older is not None:
            self._command.end()  # after a kill the witness may lack what came within the last second
            self._put_back(older)
            self.counts.events["older copy promoted"] += 1
            self.is_damaged = True
        else:
            self._command.end() if self._chance.random() < 0.5 else self._command.kill()
            if self._chance.random() < 0.2:
                self._do(Story.lose_something)
                self.is_damaged = True
        self._promote()
        self._rejoin()
        self.counts.switch_overs += 1
        self.counts.replicated = len(self._replicated)

    def _do(self, trouble: Callable[[Story], None]) -> None:
        self.counts.events[trouble.__name__.replace("_", " ")] += 1
        trouble(self)

    def _promote(self) -> None:
        if self._chance.random() < 0.3:
            dying.run(self._chance.randrange(1, _LAST_POINT), "promote", str(self.copy))
            self.counts.kills["promote"] += 1
        said = list[str]()
        try:
            says_lacks = bool(promote(self.copy, said.append).lacks)
        except ReplicaRefused:  # it was killed at its end: it is a store, and what was said is not known
            says_lacks = True
        there = values_of(self.copy, ignore_corrupt=self.is_damaged)
        missing = [value for value in self._replicated if value not in there]
        verified = verify_store(self.copy)
        assert max(there.values(), default=1) == 1, "messages are doubled"
        if self.is_damaged:
            assert not missing or not verified.good or says_lacks, (
                f"{len(missing)} messages are lost in silence: {said}"
            )
        else:
            assert not missing, f"{len(missing)} messages are lost"
            assert verified.good, verified

    def _rejoin(self) -> None:
        self.primary, self.copy = self.copy, self.primary
        self._store = self._open()
        source, (certificate, key) = f"localhost:{self._scene.port}", self._scene.certificates.make("of-copy")
        credentials = Credentials(certificate, key, self._scene.certificates.authority)
        if self._chance.random() < 0.3:
            words = ["rejoin", *self._scene.arguments(self.copy), "--name", "copy"]
            dying.run(self._chance.randrange(1, _LAST_POINT), *words)
            self.counts.kills["rejoin"] += 1
        try:
            rejoin(self.copy, source, credentials, "copy")
        except ReplicaRefused as error:  # the one that was to be killed has come to its end
            if "was not promoted since" not in str(error):
                raise
        if not self.is_damaged:
            there, aside = values_of(self.primary), quarantined(self.copy)
            lost = [value for value in self._accepted if value not in there and value not in aside]
            assert not lost, f"{len(lost)} accepted messages are in neither store"
            self.counts.accepted += len(self._accepted) - self._known
            self._accepted = [value for value in self._accepted if value in there]  # what is set aside may go
            self._known = len(self._accepted)
        self._sender, self._command = self._new_sender(), self._follow()

    # ---- troubles -------------------------------------------------------------------------------

    def _kill_store(self) -> None:
        kill_all(self._store)
        self.counts.kills["store"] += 1

    def store_killed(self) -> None:
        self._kill_store()
        self._sender.end()
        self._store = self._open()
        self._sender = self._new_sender()

    def replica_killed(self) -> None:
        self._command.kill()
        self.counts.kills["replica"] += 1
        self._command.start()

    def ha_service_killed(self) -> None:
        self.counts.kills["ha_service"] += kill(pid_of(self.primary, "ha_service"))

    def line_cut(self) -> None:
        for _ in range(self._chance.randrange(1, 6)):
            self._cable.cut()

    def bit_turned_over(self) -> None:
        self._cable.flips.add(self._chance.choice(("to store", "to replica")))

    def line_silent(self) -> None:
        """Both ways, until the store counts its replica as gone."""
        self._cable.hold("to store", "to replica")
        try:
            wait_until(lambda: not any(lane.in_sync for lane in self._store.statistics().lanes), "it is gone")
        finally:
            self._cable.held.clear()

    def copy_damaged(self) -> None:
        """It has to heal before it counts again."""
        self._command.kill()
        self.lose_something()
        self._command.start()

    def older_copy_put_back(self) -> None:
        older = self._copy_of_copy()
        self._goes_on()
        self._command.kill()
        self._put_back(older)
        self._command.start()

    def _copy_of_copy(self) -> Path:
        self._command.kill()
        older = shutil.copytree(self.copy, self.copy.with_name("older"))
        self._command.start()
        return older

    def _put_back(self, older: Path) -> None:
        shutil.rmtree(self.copy)
        older.rename(self.copy)

    def lose_something(self) -> None:
        """A segment goes, is shorter, or begins with zeros; or the lane goes, or its positions."""
        lane = self._chance.choice(sorted((self.copy / "lanes").iterdir()))
        segments = sorted((lane / "commitlog").glob("[0-9]*"))
        what = self._chance.choice(("segment", "shortened", "zeros", "lane", "positions"))
        if what == "lane" or not segments:
            shutil.rmtree(lane)
            return
        file = self._chance.choice(segments)
        if what == "segment":
            file.unlink()
        elif what == "positions":
            (lane / "positions").unlink(missing_ok=True)
        else:
            with file.open("r+b") as opened:
                opened.truncate(self._chance.randrange(100)) if what == "shortened" else opened.write(bytes(4_096))


_TROUBLES = (
    Story.store_killed, Story.replica_killed, Story.ha_service_killed, Story.line_cut, Story.bit_turned_over,
    Story.line_silent, Story.copy_damaged, Story.older_copy_put_back,
)  # fmt: skip


def switch_overs(base: Path, seed: int, count: int, tell: Callable[[str], None] = lambda line: None) -> Counts:
    """So many switch-overs, in stories of `A_STORY` at most. A failure keeps what its story has."""
    total, number = Counts(), 0
    while total.switch_overs < count:
        directory, chance = base / f"story-{number}", random.Random(f"{seed} {number}")
        pools = Path(tempfile.mkdtemp(prefix="torture-", dir=base_directory()))
        directory.mkdir()
        _one_story(directory, pools, chance, min(A_STORY, count - total.switch_overs), total)
        tell(f"story {number}: {total.switch_overs} switch-overs, {total.replicated:,} messages replicated, all there")
        shutil.rmtree(directory)
        shutil.rmtree(pools)  # a store that is damaged leaves its pool
        number += 1
    return total


def _one_story(directory: Path, pools: Path, chance: random.Random, most: int, total: Counts) -> None:
    port = free_port()
    with line(port) as cable, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMMITLOG_SHM_DIR", str(pools))
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        story = Story(directory, cable, port, chance)
        try:
            while story.counts.switch_overs < most and not story.is_damaged:
                story.switch_over()
        finally:
            story.close()
    total.take(story.counts)
