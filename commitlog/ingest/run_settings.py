"""The settings of one run of the main job, and the directories that it makes.

Everything is checked before anything is started.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import IllegalArgument, IngestError, how_to_install
from commitlog.text.lines import why_unreadable

STDIN = "-"
RUNS_DIRECTORY = "commitlog-runs"
LIVE_SECONDS, LIVE_RATE = 60.0, 2_000
PRODUCERS_MAX = 64
SHORT_RUN_MESSAGES_MAX = 1_000_000
SPARK_LOG = "spark.log"
CHECKPOINT = "_checkpoint"
_DESCRIPTOR = re.compile(r"/dev/stdin|(?:/dev|/proc/self)/fd/(\d+)")
_MARKS_OF_A_RUN = ("batch=*", CHECKPOINT, SPARK_LOG)


@dataclass(frozen=True)
class Settings:
    """The options of a run, checked and complete.

    `seconds` is None for a run until the input is done or Ctrl-C; `rate` 0 is as fast as it goes.
    """

    run: str
    topic: str
    seconds: float | None
    producers: int
    rate: float
    inputs: tuple[str, ...]
    follow: bool
    store: Path
    out: Path
    report: Path
    config: str | None = None
    skip_long: bool = False
    serve: bool = False
    """Whether Spark reads from a server of the store, by URL, in place of its directory."""

    real_time: bool = False
    """Whether Spark reads in Real-Time Mode, in place of micro-batches."""

    @property
    def live(self) -> bool:
        """Whether the machine itself is the input."""
        return not self.inputs

    @property
    def is_short(self) -> bool:
        """Whether it is known that few messages come. Then Spark had better start quickly."""
        return self.seconds is not None and 0 < self.rate * self.producers * self.seconds <= SHORT_RUN_MESSAGES_MAX

    @property
    def picture(self) -> Path:
        return self.report.with_suffix(".png")

    @property
    def page(self) -> Path:
        return self.report.with_suffix(".html")

    @property
    def spark_log(self) -> Path:
        return self.out / SPARK_LOG


def choose(
    *,
    inputs: list[str],
    follow: bool = False,
    skip_long: bool = False,
    seconds: float | None = None,
    producers: int = 2,
    rate: float | None = None,
    store: Path | None = None,
    out: Path | None = None,
    report: Path | None = None,
    config: Path | None = None,
    serve: bool = False,
    real_time: bool = False,
) -> Settings:
    """Checks the options and fills in the defaults.

    Raises IllegalArgument, and IngestError for an input that can't be read; then nothing was
    touched.
    """
    if serve and real_time:
        raise IllegalArgument(
            "--serve and --real-time: Real-Time Mode reads the store's directory; leave one of them out"
        )
    if not 1 <= producers <= PRODUCERS_MAX:
        raise IllegalArgument(f"--producers {producers}: give 1 to {PRODUCERS_MAX}")
    if rate is not None and not 0 <= rate <= 100_000_000:
        raise IllegalArgument(f"--rate {rate:g}: give messages a second, or 0 for as fast as it goes")
    if seconds is not None and not 0 < seconds <= 10_000_000:
        raise IllegalArgument(f"--seconds {seconds:g}: give more than 0")
    if follow and not inputs:
        raise IllegalArgument("--follow keeps reading files: name them with --input FILE")
    inputs = [_for_children(name) for name in inputs]
    if inputs.count(STDIN) > 1:
        raise IllegalArgument("--input -: stdin can be read once only")
    for name in inputs:
        check_input(name)
    if follow:
        _refuse_two_names(inputs)
    if inputs:
        inputs = [name if name == STDIN else os.path.abspath(name) for name in inputs]
        producers = min(producers, len(inputs))  # one file's lines stay in one lane, and so in order
    base = _free_directory() if store is None or out is None else Path()
    out = (out or base / "out").absolute()
    report = report.absolute() if report else out / "report.json"
    if report.is_dir():
        raise IllegalArgument(f"--report {report}: that is a directory; name a .json file in it")
    if report.suffix in (".png", ".html"):
        raise IllegalArgument(f"--report {report}: picture and page are written beside it; name a .json file")
    return Settings(
        run=secrets.token_hex(4),
        topic="lines" if inputs else "machine",
        seconds=LIVE_SECONDS if seconds is None and not inputs else seconds,
        producers=producers,
        rate=rate if rate is not None else (0 if inputs else LIVE_RATE),
        inputs=tuple(inputs),
        follow=follow,
        skip_long=skip_long,
        store=(store or base / "store").absolute(),
        out=out,
        report=report,
        config=str(config.absolute()) if config else None,
        serve=serve,
        real_time=real_time,
    )


def check_input(name: str) -> None:
    """Raises IngestError unless the file can be opened for reading."""
    reason = None if name == STDIN else why_unreadable(name)
    if reason:
        raise IngestError(f"--input {name}: {reason}")


def _for_children(name: str) -> str:
    """The name of an open descriptor (`/dev/stdin`, bash's `<(…)`) as another process knows it."""
    found = _DESCRIPTOR.fullmatch(name)
    if found is None:
        return name
    return STDIN if (found[1] or "0") == "0" else f"/proc/{os.getpid()}/fd/{found[1]}"


def _refuse_two_names(inputs: list[str]) -> None:
    """Raises IngestError where two of the names are one file, whose lines would come twice."""
    known: dict[tuple[int, int], str] = {}
    for name in inputs:
        facts = os.stat(name) if name != STDIN else os.fstat(0)
        other = known.setdefault((facts.st_dev, facts.st_ino), name)
        if other is not name:
            raise IngestError(f"--input {name}: is the same file as {other}; give one of them")


def check_packages() -> None:
    """Raises IngestError where a package of an extra is missing, before anything is started."""
    needed = ("pyspark", "pyarrow", "psutil", "rich", "matplotlib")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        raise IngestError(f"{', '.join(missing)} not installed: {how_to_install('ingest', *missing)}")


def _free_directory() -> Path:
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    base = Path(RUNS_DIRECTORY).absolute()
    candidates = (base / f"{stamp}{f'_{n}' if n > 1 else ''}" for n in range(1, 1000))
    return next(path for path in candidates if not path.exists())


class Places:
    """The directories of a run.

    - `undo` removes those that this run made and that are empty.
    - `discard` removes them with their content: for a run that ended before its first message.
    - `discard_store` removes the store alone, where the output explains what went wrong.

    A directory that was there before the run is never touched.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.made: list[Path] = []
        self.store_existed = settings.store.exists()

    def make(self) -> None:
        """Makes the directories.

        Raises IngestError for another run's output, a missing permission, or a file in the way.
        """
        out, report = self.settings.out, self.settings.report
        if out.exists() and not out.is_dir():
            raise IngestError(f"--out {out}: is a file; name a directory")
        for mark in _MARKS_OF_A_RUN:
            found = next(iter(out.glob(mark)), None)
            if found:
                raise IngestError(f"--out {out} holds another run ({found.name}); name a new directory or remove it")
        self._make_directory(out, "--out")
        self._make_directory(self.settings.store.parent, "--store")
        self._make_directory(report.parent, "--report")
        for directory, option in ((out, "--out"), (report.parent, "--report")):
            if not os.access(directory, os.W_OK | os.X_OK):
                self.undo()
                raise IngestError(f"{option}: no permission to write into {directory}")

    def _make_directory(self, path: Path, option: str) -> None:
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        for directory in reversed(missing):
            try:
                directory.mkdir()
            except OSError as error:
                self.undo()
                raise IngestError(
                    f"{option}: can't make {directory}: {error.strerror}; choose another place"
                ) from error
            self.made.append(directory)

    def discard_store(self) -> None:
        if not self.store_existed:
            shutil.rmtree(self.settings.store, ignore_errors=True)

    def discard(self) -> None:
        self.discard_store()
        if self.settings.out in self.made:
            shutil.rmtree(self.settings.out, ignore_errors=True)
        self.undo()

    def undo(self) -> None:
        for directory in reversed(self.made):
            try:
                directory.rmdir()
            except OSError:
                continue  # something is in it: not ours to remove
        self.made.clear()
