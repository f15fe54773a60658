"""The class of a running store, which starts the stages at `open` and stops them at `close`."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from commitlog import errors
from commitlog.config import Config
from commitlog.config_file import load_config
from commitlog.disk.descriptors import check_free, occupy_standard_descriptors
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import (
    CommitLogError,
    IllegalArgument,
    StageFailed,
    StoreRefused,
    StoreRunning,
    StoreStopped,
    named_while_loading,
    named_while_reading,
    refusal,
    refuse_copy,
)
from commitlog.status import StopReport
from commitlog.system.forks import leave_in_child, settle
from commitlog.system.threads import Background
from commitlog.text.notebook import html_table

if TYPE_CHECKING:
    from commitlog.client.producer import Producer
    from commitlog.client.statistics import StoreStatistics
    from commitlog.schemas.topic_schemas import TopicSchema

ANSWER_SECONDS = 10.0
"""How long `reload` waits for the supervisor."""
_CLOSE_SLACK_SECONDS = 180.0
"""The time that a close gives the supervisor, in addition to the time for draining the stages."""

_NEEDED_DESCRIPTORS = 12
"""How many descriptors a start needs: for the pipes to the supervisor, and for `Popen` itself."""

log = logging.getLogger(__name__)


class Store:
    """A store whose stages run, as child processes of a supervisor.

    `Store.open` starts them, and `close` drains and stops them. If this process dies instead, the
    stages notice it, drain and end by themselves.

    - `path`: the store's directory
    - `segment_bytes`: size of its segment files
    """

    def __init__(self, path: object = "…", *_: object, **__: object) -> None:
        raise IllegalArgument(f"a store is opened, not made like this: commitlog.Store.open({path!r:.80})")

    def _begin(self, path: Path, process: subprocess.Popen[bytes], ready: Mapping[str, Any], config: Config) -> None:
        self.path = path
        self._config = config
        self._drain_seconds = _drain_seconds(config)
        self.segment_bytes: int = ready["segment_bytes"]
        self._process = process
        self._producers: list[Producer] = []
        self._stopped: dict[str, Any] = {}
        self._error: dict[str, Any] = {}
        self._pid = os.getpid()
        self._reloading = threading.Lock()
        self._reloads = 0
        self._reloaded: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._listener = Background(self._listen, "commitlog-supervisor")
        _STORES.add(self)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: str | Path | Mapping[str, Any] | Config | None = None,
        *,
        reuse: bool = False,
    ) -> Store:
        """Makes the store if it is missing, recovers it if it was killed, and starts its stages.

        `config` is a TOML file, a Config, or a dictionary of sections, as in
        `{"store": {"flush_disk_type": "SYNC_FLUSH"}}`. Knobs that are left out keep their defaults.
        Without any, a store has the configuration that it ran with last: by the defaults, retention
        would delete what the store was told to keep.
        If this process has the store open already, `reuse=True` returns that same object, so that a
        cell of a notebook can be run again. Its `close` closes the store for everybody who uses the
        object.

        Raises:
        - ConfigError
        - StoreRunning: another process runs the stages; or this process runs them, and `reuse` is
          not set or the configuration is another one
        - StoreRefused, StoreDamaged, StoreTooNew: the path is not a store that can be used
        - PoolNotAdopted, RecoveryError: what a killed store left can't be taken over without loss
        - NotEnoughSharedMemory, NotEnoughDescriptors, DiskError: the machine has no room
        - StageFailed: a stage did not start
        """
        directory = StoreDirectory(path)
        settings = None if config is None else load_config(config)
        opened = _opened_here(directory.path)
        if opened is not None:
            if reuse and settings in (None, opened._config):  # noqa: SLF001
                return opened
            raise StoreRunning(_text_of_opened(opened, reuse))
        return cls._start(directory, _last_config(directory) if settings is None else settings)

    @classmethod
    def _start(cls, directory: StoreDirectory, settings: Config, *, only_drains: bool = False) -> Store:
        wanted = {"path": str(directory.path), "config": settings.to_json(), "only_drains": only_drains}
        try:
            request = orjson.dumps(wanted) + b"\n"
        except TypeError:  # it tells the stages in JSON
            raise StoreRefused(f"{str(directory.path)!a}: a store's path is UTF-8; choose another one") from None
        check_free(_NEEDED_DESCRIPTORS, f"{directory.path}: to start the stages")
        occupy_standard_descriptors()  # otherwise a pipe to the supervisor could get such a number
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "commitlog.stages.supervisor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                # numpy's threads are never used, and take a third of a stage's start
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:  # no process, no memory
            raise refusal(error, directory.path, "starting the store") from error
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            with named_while_loading("commitlog.Producer"):
                import commitlog.client.producer  # noqa: F401  numpy and more, which the supervisor loads at the same time
            ready = _await_ready(process)
            store = cls.__new__(cls)
            store._begin(directory.path, process, ready, settings)  # noqa: SLF001
        except BaseException:
            process.stdin.close()
            process.wait()
            process.stdout.close()
            raise
        return store

    def _listen(self) -> None:
        """Reads the supervisor's output: passes on warnings, and keeps for `close` how it ended."""
        assert self._process.stdout
        with self._process.stdout as lines:  # closed here: another thread's `close` would wait for the end of a read
            for line in lines:
                message = orjson.loads(line)
                if "warning" in message:
                    log.warning("%s: %s", self.path, message["warning"])
                elif "reloaded" in message:
                    self._reloaded.put(message)
                elif "error" in message:
                    self._error = message
                else:
                    self._stopped = message
        self._reloaded.put(None)

    @property
    def running(self) -> bool:
        """Whether the supervisor is alive."""
        return self._process.poll() is None

    def producer(self) -> Producer:
        """Makes a producer of this store. `close` closes it, too. Raises what Producer raises."""
        from commitlog.client.producer import Producer

        producer = Producer(self.path)
        for other in [other for other in self._producers if other._closed]:  # its mapping of the pool goes with it  # noqa: SLF001
            with contextlib.suppress(ValueError):  # another thread makes a producer too
                self._producers.remove(other)
        self._producers.append(producer)
        return producer

    def create_topic(self, topic: str, schema: object, *, evolve: bool = False) -> TopicSchema:
        """Gives a topic a schema. From now on the topic has rows, and Spark reads them as columns.

        `schema` is a pyarrow.Schema, text such as "id BIGINT NOT NULL, name STRING", a dataclass, a
        NamedTuple or a pydantic model. The schema is on the disk when this returns. If the topic
        has this schema already, nothing happens. With `evolve=True`, the topic's schema may grow:
        columns that may be null are added, types become wider, NOT NULL goes. Messages that were
        sent before show nulls in the new columns.

        A topic without a schema has values, and needs no call. Messages from before the schema stay
        values: a reader of rows raises an error for them, or leaves them out with
        `ignoreCorruptRecords`.

        Raises:
        - SchemaError: the schema is wrong, or Spark has no such type
        - SchemaConflict: the topic has another schema, which can't become this one
        - TopicNotWritable, StoreRefused, StoreDamaged
        """
        with named_while_loading("what declares schemas"):
            from commitlog.reading.used_versions import used_version
            from commitlog.schemas.declaring import declared_schema
            from commitlog.schemas.topic_schemas import TopicSchemas

        directory = StoreDirectory(self.path)
        return TopicSchemas(directory).declare(
            topic, declared_schema(schema), evolve=evolve, used=lambda: used_version(directory, topic)
        )

    def reload(self, config: str | Path | Mapping[str, Any] | Config) -> dict[str, str]:
        """Gives the running store another configuration, as `open` takes it.

        Returns each knob that differs, with when it takes effect: at once, for producers that are
        made from now on, after a restart, or only in a new store (docs/operate.md has the table). A
        knob that needs a restart is not remembered: give it to the next `open`.

        Raises:
        - ConfigError: nothing has changed
        - DiskError, StoreRefused: `store.json` can't be written, and nothing has changed
        - StoreStopped: the store is closed, or its supervisor has ended
        - StageFailed: the supervisor does not answer
        """
        settings = load_config(config)
        if self._forked:
            raise StoreStopped(f"{self.path} is the parent's: a forked child does not reload it")
        pipe = self._process.stdin
        assert pipe is not None
        with self._reloading:
            self._reloads += 1
            order = {"reload": self._reloads, "config": settings.to_json()}
            try:
                pipe.write(orjson.dumps(order) + b"\n")
                pipe.flush()
                answer = self._answer_to(self._reloads)
            except (BrokenPipeError, ValueError):  # ValueError: this process has closed it
                answer = None
            if answer is None:
                self._reloaded.put(None)  # for the next call
                raise StoreStopped(
                    f"{self.path} was closed or killed: it takes no configuration; open it with that one"
                )
            if answer["reloaded"] is None:
                raise _named(answer)
            self._config, self._drain_seconds = settings, _drain_seconds(settings)
        changed: dict[str, str] = answer["reloaded"]
        return changed

    def _answer_to(self, number: int) -> dict[str, Any] | None:
        """Waits for the answer to the reload of this number; None if the supervisor has ended.

        Answers to earlier reloads, whose wait was interrupted, are passed over. Raises StageFailed.
        """
        while True:
            try:
                answer = self._reloaded.get(timeout=ANSWER_SECONDS)
            except queue.Empty:
                raise StageFailed(
                    f"{self.path}: the supervisor does not answer: `commitlog health` says more; the configuration may still "
                    f"be taken"
                ) from None
            if answer is None or answer["reload"] == number:
                return answer

    def statistics(self) -> StoreStatistics:
        """Returns positions, counters and times of all lanes and stages."""
        from commitlog.client.statistics import store_statistics
        from commitlog.reading.view import StoreView

        with contextlib.closing(StoreView(self.path)) as view:
            return store_statistics(view)

    def topics(self) -> list[dict[str, Any]]:
        """Returns the topics: how many messages each has, how large, how old, how fast they come.

        There is one dictionary for each topic, in the order of their names. It has the fields of
        `commitlog topics --json` (docs/command-line.md has the table), so
        `polars.DataFrame(store.topics())` works. Printed, or in a notebook, the list is a table.

        Raises:
        - DamagedFile: what tells of the topics is damaged
        - DiskError, NotEnoughDescriptors: the system refuses to read it
        """
        with named_while_loading("what lists topics"), named_while_reading(self.path):
            from commitlog.inspecting.topic_list import topic_list

            return topic_list(self.path)

    def close(self) -> StopReport:
        """Closes this store's producers, then drains and stops the stages.

        Messages that producers of other processes had sent are drained too. If one of these
        producers still holds its lane, the pool stays, and the report says so. In a forked child
        this closes the child's own producers only, because the store is its parent's.

        Raises StageFailed if the supervisor gave up a stage, or if it has not ended long after the
        stages' time to drain. Nothing is lost then.
        """
        if self._forked:
            self._close_producers()
            return StopReport(False, ("a forked child does not stop its parent's store",))
        process = self._process
        assert process.stdin is not None
        self._close_producers()
        if not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # the supervisor is gone already: its stages drain by themselves
                process.stdin.write(b"stop\n")  # closing the pipe is not enough: forked children may hold it too
                process.stdin.close()
        limit = self._drain_seconds + _CLOSE_SLACK_SECONDS
        self._listener.join(limit)  # until the supervisor's output ends: `wait` with a limit looks every 50 ms only
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            raise StageFailed(
                f"{self.path}: its supervisor (pid {process.pid}) has not stopped in {limit:g} s, see {self.path}/logs; "
                f"nothing is lost: kill it when it hangs, and the next start goes on with the pool"
            ) from None
        if self._error:
            raise _named(self._error)
        return self._report()

    def _close_producers(self) -> None:
        while self._producers:
            self._producers.pop().close()

    def hurry(self) -> None:
        """Stops the draining stages at once, while `close` waits for them.

        Call it from another thread or from a signal handler. The rest of the stages' work stays in
        the pool for the next start.
        """
        if self.running:
            self._process.terminate()

    def _report(self) -> StopReport:
        if not self._stopped:
            raise StageFailed(
                f"{self.path}: the supervisor died (exit code {self._process.returncode}); its stages drain and leave by "
                f"themselves, and the next start finds what they left"
            )
        return StopReport(bool(self._stopped["drained"]), tuple(self._stopped["kept"]))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the store.

        Warns if something is not on the disk, because a with-block shows no report.
        """
        report = self.close()
        for reason in () if self._forked else report.kept:
            log.warning("%s: not all is on the disk: %s", self.path, reason)

    @property
    def _forked(self) -> bool:
        return self._pid != os.getpid()

    __reduce_ex__ = refuse_copy

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Its statistics as a table, in a notebook."""
        try:
            return self.statistics()._repr_html_()
        except (CommitLogError, OSError) as error:  # it is gone, or damaged
            return html_table(repr(self), [(str(error),)])


def _last_config(directory: StoreDirectory) -> Config:
    """The configuration that a store's stages ran with last; the defaults where there is no store.

    Raises StoreDamaged, StoreRefused, StoreTooNew, DiskError.
    """
    try:
        return Config.from_json(directory.load().config)
    except errors.StoreNotFound:
        return Config()


def drain(path: str | os.PathLike[str], config: Mapping[str, Any]) -> StopReport:
    """Starts a killed store only to bring the rest of its pool to the disk, and stops it again.

    This is the only start that a superseded store allows, because no producer can attach. Raises
    what `Store.open` and `Store.close` raise.
    """
    return Store._start(StoreDirectory(path), load_config(config), only_drains=True).close()  # noqa: SLF001


def _drain_seconds(config: Config) -> float:
    """Returns how long the stages may drain in all, one after the other, in seconds."""
    return 4 * config.supervisor.stop_timeout_ms / 1000


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


def _opened_here(path: Path) -> Store | None:
    """Finds the object of this process that has the store open, if there is one."""
    settle()
    for store in list(_STORES):
        pipe = store._process.stdin  # noqa: SLF001
        if pipe is not None and not pipe.closed and store.running and store.path.resolve() == path.resolve():
            return store
    return None


def _text_of_opened(opened: Store, reuse: bool) -> str:
    """Makes the text of the error for a store that this process has open already."""
    names = [name for name, value in vars(sys.modules["__main__"]).items() if value is opened]
    where = f"in the variable {names[0]}" if names else f"as {opened!r}"
    text = f"{opened.path}: this process has it open already, {where}"
    if reuse:
        return f"{text}, with another configuration: close that first"
    return f"{text}: use that, or Store.open(path, reuse=True), which returns it"


def _let_go_in_child() -> None:
    """Closes the pipes to the supervisors in a forked child.

    Otherwise the supervisors would run on after the parent's death. The pipes are closed below
    their buffers. So the objects know that they are closed, and never use a descriptor number that
    another file may have by then. So, too, the child waits for no lock that a thread of the parent
    held.
    """
    for store in list(_STORES):
        for pipe in (store._process.stdin, store._process.stdout):  # noqa: SLF001
            if isinstance(pipe, io.BufferedWriter | io.BufferedReader) and not pipe.closed:
                pipe.raw.close()
    _STORES.clear()


leave_in_child(_let_go_in_child)


def _await_ready(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    for line in process.stdout:
        message: dict[str, Any] = orjson.loads(line)
        if "warning" in message:
            log.warning("%s", message["warning"])
        elif "error" in message:
            raise _named(message)
        elif message.get("ready"):
            return message
    raise StageFailed(f"the supervisor ended before it was ready (exit code {process.wait()})")


def _named(message: Mapping[str, Any]) -> CommitLogError:
    """Makes the error that the supervisor has reported by its name."""
    kind = getattr(errors, str(message["error"]), StageFailed)
    error: CommitLogError = kind(message["message"])
    return error
