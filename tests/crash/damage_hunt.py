"""Damages files of a store at random, and looks whether anybody passes over a loss in silence.

Each case takes a store that was stopped, killed, or killed with its pool lost (sound_store.py), and
does one thing or several to its files (file_damage.py). Then it looks at the store as a user does,
starts it, sends to it, stops it, and looks again. Which messages are there is known from the bytes
of the damaged files and from what was sent, and never from a reader.

What has to hold, before the start and after it: each message that must be there is read, or an
error or a warning says that something is missing. No value is wrong or given twice, and no
offset is given out again. Where messages are missing, `verify`, `health` and `backup` are not good.
Every error is one of commitlog.errors, and nothing hangs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from commitlog.errors import CommitLogError, refusal
from commitlog.shm.layout import LANE_ROWS, Lane
from tests.command_line import run
from tests.crash.damage_truth import Failure, Look, Truth, look, look_at_rows
from tests.crash.file_damage import Places, damage
from tests.crash.sound_store import (
    READ_TOPIC,
    READERS,
    TYPED,
    PlainChannel,
    Sent,
    SoundStore,
    make_sound,
    send_one,
)
from tests.faults.bench import Bench
from tests.leaks import descriptors

STATES = ("stopped", "killed", "killed, no pool")
CASES_A_STORE = 25
_HANG_SECONDS = 60
_LOOKING = {
    "stat": 9,
    "topics": 9,
    "readers": 9,
    "health": 9,
    "replicas": 9,
    "dump": 9,
    "logs": 9,
    "metrics": 9,
    "doctor": 1,
}
"""Commands that look at a store, and how often: `doctor` starts two processes each time."""
_CASES_A_LINE = 500
_NAMES_A_LOSS = {"damage-noted", "lane-lost", "index-damaged", "file-damaged", "unreadable", "reader-unreadable"}
"""Reasons of health that say that something is missing."""


class _Hang(BaseException):
    pass


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Raises _Hang in what lasts too long."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- one case -----------------------------------------------------------------------------------


class _Started(Bench):
    """A bench whose stages' own errors are told from those of the start."""

    def start(self, name: str) -> Any:
        try:
            return super().start(name)
        except CommitLogError:
            raise
        except Exception as error:
            raise Failure(f"the {name} dies at its start: {type(error).__name__}: {error}") from error


@dataclass
class Case:
    """One case: `number` of `seed`. `outcome` is how it ended, `done` what was done."""

    sound: SoundStore
    other: Path
    chance: random.Random
    outcome: Counter[str] = field(default_factory=Counter)
    done: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    state: str = ""
    at: str = ""
    log: list[str] = field(default_factory=list)
    pools: set[Path] = field(default_factory=set)
    is_stage_left: bool = False
    flushed: dict[int, int] = field(default_factory=dict)
    """Lane → how far it was flushed, where the stop said that the pool stays. Else empty."""

    def run(self) -> None:
        """Raises Failure."""
        self.state = self.chance.choice(STATES)
        self.at = "damage"
        self.sound.put_back(self.state)
        self._damage()
        try:
            with _patience():
                self._check()
        finally:
            for pool in self.pools | self._given_up():
                shutil.rmtree(pool, ignore_errors=True)

    def _given_up(self) -> set[Path]:
        """Pools of this store that refused starts have left for the next start."""
        left, name = set(), os.fsencode(self.sound.path)
        for store in self.sound.pool.parent.glob("commitlog-*/store"):
            with contextlib.suppress(FileNotFoundError):  # another hunt's, which has just removed it
                if store.read_bytes() == name:
                    left.add(store.parent)
        return left - {self.sound.pool}

    def _damage(self) -> None:
        pool = self.sound.pool if self.state == "killed" else None
        places = Places(self.sound.path, pool, self.other)
        for _ in range(self.chance.choices((1, 2, 3), (6, 3, 1))[0]):
            kind, said = damage(places, self.chance)
            self.kinds.append(kind)
            self.done.append(said)

    def _check(self) -> None:
        pool_kinds = {"control", "buffers", "pool name", "store.json", "foreign"}
        truth = Truth.of(self.sound, self.state, not pool_kinds & set(self.kinds))
        self.at = "before the start"
        before = self._look(truth, truth.readable_before(), "before the start")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of a stage that is refused: its process would end here
            started = self._start()
            if self.is_stage_left:
                gc.collect()
        if started is None:
            self.outcome["refused by name"] += 1
            return
        self.at = "in the start"
        sent = self._use(started, truth)
        self.at = "after the start"
        after = self._look(truth, self._flushed(truth.must), "after the start", list(self._flushed(sent)))
        named = before.said or after.said or self.log
        self.outcome["read with a warning or an error" if named else "whole"] += 1

    def _flushed(self, messages: Iterable[Sent]) -> set[Sent]:
        """The messages that readers have to give. The pool has the others, for the next start."""
        return {m for m in messages if not self.flushed or m.end <= self.flushed.get(m.lane, 0)}

    def _look(self, truth: Truth, must: set[Sent], when: str, new: list[Sent] | None = None) -> Look:
        """Looks at the store as all its users do."""
        path, known = self.sound.path, truth.known
        strict = self._read(path, known)
        missing = {message for message in must if message.place not in strict.read}
        lacking = [message for message in new or () if message.place not in strict.read]
        if (missing or lacking) and not strict.said:
            raise Failure(self._said(when, "a strict reader", missing or lacking))
        lenient = self._read(path, known, ignore_corrupt=True)
        hidden = {message for message in must & truth.intact if message.place not in lenient.read}
        if hidden and not lenient.said:
            raise Failure(self._said(when, "a reader that ignores damage", hidden))
        if hidden:
            self.outcome[f"intact ones hidden {when}, named"] += 1
        topic = self.chance.choice(("a", "b", "c", TYPED))
        some = {message for message in must & truth.told if message.topic == topic}
        if some:
            one = self._read(path, known, topic=topic)
            if {m for m in some if m.place not in one.read} and not one.said:
                raise Failure(self._said(when, f"a strict reader of {topic}", some))
        self._named_readers(known, must & truth.told, when)
        if not self._has_foreign_log:  # its rows are good ones, and nothing tells whose they are
            rows = must & (truth.in_files if new is None else truth.intact)
            look_at_rows(path, [message for message in rows if message.topic == TYPED])
        is_settled = truth.state == "stopped" or new is not None
        self._tools(missing if is_settled else set(), known, must if is_settled else set(), when)
        return strict

    def _read(self, path: Path, known: dict[tuple[int, str, int], Sent], **options: Any) -> Look:
        return look(path, known, is_foreign=self._has_foreign_log, **options)

    @property
    def _has_foreign_log(self) -> bool:
        return any(
            ("another store's" in done and "directory" in done) or "segment another" in done for done in self.done
        )

    def _named_readers(self, known: dict[tuple[int, str, int], Sent], must: set[Sent], when: str) -> None:
        for name in READERS:
            found = self._read(self.sound.path, known, topic=READ_TOPIC[name], name=name)
            missing = {
                message
                for message in must
                if message.topic == READ_TOPIC[name]
                and message.offset >= self.sound.committed.get((name, message.lane), 0)
                and message.place not in found.read
            }
            if missing and not found.said:
                raise Failure(self._said(when, f"the reader {name}", missing))

    def _tools(self, missing: set[Sent], known: dict[tuple[int, str, int], Sent], must: set[Sent], when: str) -> None:
        path = self.sound.path
        verified = _tool("verify", path)
        if missing and verified == 0:
            raise Failure(self._said(when, "verify, which is good", missing))
        target = path.with_name("backup")
        try:
            if _tool("backup", path, target) == 0 and must:
                found = self._read(target, known)
                lacking = {message for message in must if message.place not in found.read}
                if lacking:
                    raise Failure(self._said(when, "backup, which is good", lacking))
        finally:
            shutil.rmtree(target, ignore_errors=True)
        (word,) = self.chance.choices(list(_LOOKING), list(_LOOKING.values()))
        _tool(word, path)

    def _said(self, when: str, who: str, missing: Iterable[Sent]) -> str:
        places = sorted(message.place for message in missing)
        return f"{when} {len(places)} messages are missing, and nothing is said by {who}: {places[:4]}"

    # ---- a start --------------------------------------------------------------------------------

    def _start(self) -> Bench | None:
        """A bench on the store, or None where the start is refused by name."""
        self.at = "at the start"
        made: Bench = _Started.__new__(_Started)
        channels: list[PlainChannel] = []
        before = descriptors()

        def channel(path: Path, stage: str) -> PlainChannel:
            channels.append(PlainChannel(path, stage))
            return channels[-1]

        try:
            made.__init__(self.sound.path, channel=channel)  # type: ignore[misc]
        except (CommitLogError, OSError) as error:
            self.log.append(f"{type(error).__name__}: {error}")
            if isinstance(error, OSError):
                self.log.append(str(refusal(error, self.sound.path, "starting the store")))
            self._let_go(made)
            pipes = [fd for fd, what in descriptors().items() if what.startswith("pipe:") and fd not in before]
            for fd in [fd for one in channels[-1:] if one.stage not in made.stages for fd in [*one._paths, *pipes]]:
                os.close(fd)  # of a stage that is refused
            return None
        except BaseException:
            self._let_go(made)
            raise
        self.log += made.warnings
        self.pools.add(made.control.region.path.parent)
        return made

    def _let_go(self, made: Bench) -> None:
        if "control" in vars(made):
            self.pools.add(made.control.region.path.parent)
            self.is_stage_left = True
            made.producers = []
            made.abandon()
        elif "_opening" in vars(made):
            made._opening.locks.close()

    def _use(self, started: Bench, truth: Truth) -> list[Sent]:
        """Sends a little, looks at the live store, and stops it."""
        new: list[Sent] = []
        is_stopped = False
        try:
            self._settle(started)  # a lane has to be drained before a producer has it
            with contextlib.suppress(CommitLogError):
                for number in range(2):
                    producer = started.producer()
                    for count in range(3):
                        new.append(send_one(producer, self.chance, 10_000_000 + number * 10 + count))
            self._settle(started)
            self._check_new(truth, new)
            live = self._read(self.sound.path, truth.known)
            missing = {message for message in truth.must if message.place not in live.read}
            if missing and not live.said:
                raise Failure(self._said("after the start", "a strict reader of the live store", missing))
            health = run("health", self.sound.path, "--json")
            is_known = any("corruption" in line for line in self.log)  # a start does not check all of the log
            if missing and is_known and not any(f'"{code}"'.encode() in health.stdout for code in _NAMES_A_LOSS):
                raise Failure(self._said("after the start", f"health ({health.stdout!r})", missing))
            is_stopped = True
            flushed = {lane: started.lane(Lane.FLUSHED, lane) for lane in range(LANE_ROWS)}
            if not started.stop().drained:
                self.flushed = flushed
                self.outcome["not drained"] += 1
        finally:
            if not is_stopped:
                with contextlib.suppress(Exception):
                    started.abandon()
        return new

    def _settle(self, started: Bench) -> None:
        """Has the stages do all they can. What they can't do is a reason of health."""
        try:
            started.settle()
        except AssertionError as left:
            if b'"stage-fault"' not in run("health", self.sound.path, "--json").stdout:
                raise Failure(f"{left}, and health does not say so") from left
            self.outcome["a stage is stuck, named"] += 1

    def _check_new(self, truth: Truth, new: list[Sent]) -> None:
        """No new message has taken the place of one that is there."""
        for message in new:
            old = truth.known.get(message.place)
            if old is not None and old in truth.intact and old in truth.must:
                raise Failure(f"the queue offset of {old.place} was given out again")
            if any(
                o.lane == message.lane and message.where < o.end and o.where < message.end
                for o in truth.intact & truth.must
            ):
                raise Failure(f"the place of a message at {message.where} of lane {message.lane} was given out again")
            truth.known[message.place] = message


def _tool(*words: object) -> int:
    """Runs a command; its exit code."""
    return run(*words).returncode


# ---- many cases ---------------------------------------------------------------------------------


@dataclass
class Hunt:
    """What was tried, and what was found."""

    cases: int = 0
    damages: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: " + ", ".join(f"{key} {count:,}" for key, count in sorted(counts.items()))
            for name, counts in (("stores", self.states), ("damaged", self.damages), ("ended", self.outcomes))
        )


def hunt(base: Path, seed: int, count: int, first: int = 0, *, shows: bool = False) -> Hunt:
    """Tries the cases `first` to `first + count` of the seed below the empty directory `base`."""
    found, made = Hunt(), _Stores(base, seed)
    try:
        for number in range(first, first + count):
            sound, other = made.of(number)
            case = Case(sound, other, random.Random(f"{seed} {number}"))
            found.cases += 1
            try:
                case.run()
            except (Exception, _Hang) as error:
                what = str(error) if isinstance(error, Failure) else _traced(error)
                text = f"case {number}: {case.state}; {'; '.join(case.done)}: {type(error).__name__} {case.at}: {what}"
                text += f"\n    start: {case.log}\n    repeat: scripts/torture --damage 1 --seed {seed} --case {number}"
                found.failures.append(text)
                print(text, flush=True)
                case.outcome["FAILED"] += 1
            if shows:
                print(case.state, case.done, case.log, dict(case.outcome), sep="\n")
            found.states[case.state] += 1
            found.damages.update(case.kinds)
            found.outcomes += case.outcome
            if found.cases % _CASES_A_LINE == 0:
                print(f"{found.cases:,} cases, {len(found.failures)} failed", flush=True)
    finally:
        made.close()
    return found


def _traced(error: BaseException) -> str:
    """Who was asked, and what went wrong in there: the frames at both ends."""
    frames = traceback.extract_tb(error.__traceback__)
    asked = [frame for frame in frames if "/tests/" in frame.filename][-3:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.line}" for frame in (*asked, *frames[-4:])]
    return "\n    ".join([str(error), *places])


class _Stores:
    """The sound stores: each serves some cases, and the one before it has the foreign files."""

    def __init__(self, base: Path, seed: int) -> None:
        self._base, self._seed = base, seed
        self._made: dict[int, SoundStore] = {}

    def of(self, number: int) -> tuple[SoundStore, Path]:
        """The store of a case, and a directory with the files of another one."""
        index = number // CASES_A_STORE
        for old in [old for old in self._made if old not in (index, index + 1)]:
            self._remove(old)
        for wanted in (index, index + 1):
            if wanted not in self._made:
                base = self._base / str(wanted)
                base.mkdir(mode=0o700)
                self._made[wanted] = make_sound(base, random.Random(f"{self._seed} store {wanted}"))
        sound, other = self._made[index], self._made[index + 1]
        return sound, (sound if number % 2 else other).base / ("killed" if number % 3 else "stopped")

    def _remove(self, index: int) -> None:
        self._made.pop(index).remove()

    def close(self) -> None:
        for index in list(self._made):
            self._remove(index)
