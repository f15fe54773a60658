"""`commitlog produce STORE TOPIC [FILE…]`: one message a line, or the rows of a typed topic.

STORE may be the URL of a served store: then a RemoteProducer sends.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.cli.arguments import STORE_VARIABLE, print_lines
from commitlog.cli.completion import topics_of
from commitlog.cli.served import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    StoreOrUrlArgument,
    TokenFileOption,
    served_address,
)
from commitlog.clock import SYSTEM_CLOCK
from commitlog.errors import (
    CommitLogError,
    NoSchema,
    StoreMoved,
    StoreNotFound,
    StoreNotRunning,
    StoreRunning,
    StoreStopped,
)
from commitlog.lines import LineSplitter, why_unreadable
from commitlog.quantities import counted

if TYPE_CHECKING:
    from commitlog.planning.address import Address
    from commitlog.producer import Producer
    from commitlog.remote.producer import RemoteProducer
    from commitlog.store import Store

    AnyProducer = Producer | RemoteProducer

_READ_BYTES = 1 << 18
_PACE_SECONDS = 0.05
"""About the time that one batch stands for where `--rate` is given."""
_LOOK_SECONDS = 0.05
_PATIENCE_NS = 60_000_000_000
"""How long it waits for stages that another command starts."""


class InputError(CommitLogError):
    """An input file can't be read, or a line of it can't be sent."""


def produce(
    store: StoreOrUrlArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send to.", autocompletion=topics_of)],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files to send line by line; - or none: standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Key of every message.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="What is before it in a line is the key, as kcat's -K."
        ),
    ] = None,
    tags: Annotated[str | None, typer.Option(metavar="TAGS", help="Tags of every message.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every message; may be given again.")
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", min=0.001, help="At most N messages a second.")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after N lines.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="A line is a row of a typed topic, as a JSON object.")] = False,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
) -> None:
    """Send each line as a message; all are on disk at the end.

        tail -n 0 -F app.log | commitlog produce data/events logs --key web-1
        commitlog produce data/events orders orders.tsv -K : --header source=shop

    A STORE that is missing is made. Where its stages do not run, they run for as long as this
    command does, and it ends after all who send through them. Ctrl-C flushes what was sent, says
    how much that is, and ends with exit code 130. Where COMMITLOG_STORE is set, STORE is left out:
    `commitlog produce TOPIC [FILE]...`.
    """
    _check_place(topic)
    if key_separator and (key or rows):
        raise typer.BadParameter("--key-separator goes without --key and --rows")
    names = files or ["-"]
    for name in names:
        reason = None if name == "-" else why_unreadable(name)
        if reason:
            raise InputError(f"{name}: {reason}; nothing was sent")
    how = _Sending(topic, key, key_separator, tags, dict(map(_pair, header or [])), rows=rows)
    how.send_all(store, served_address(store, token_file, ca_file, cert_file, key_file), names, count, rate)


def _check_place(topic: str) -> None:
    """Raises typer.BadParameter where a store stands in the topic's place."""
    named = os.environ.get(STORE_VARIABLE)
    if named and ("/" in topic or (Path(topic) / "store.json").exists()):
        raise typer.BadParameter(
            f"{topic!r} is no topic. {STORE_VARIABLE} is set ({named}), so STORE is left out: "
            f"commitlog produce TOPIC [FILE]...; or unset it"
        )


def _row_reader(store: str, address: Address | None, topic: str) -> Callable[[Any], Any]:
    """What makes a row of a line's JSON. Raises NoSchema, before a store is made."""
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.schemas.row_lines import reader_of
    from commitlog.schemas.topic_schemas import TopicSchemas

    if address is not None:
        from commitlog.remote.store_index import typed_topics

        schema = typed_topics(address, (topic,)).get(topic)
    else:
        schema = TopicSchemas(StoreDirectory(store)).latest(topic)
    if schema is None:
        raise NoSchema(
            f"topic {topic} has no schema: `commitlog topics {store} --create {topic} --schema 'id BIGINT, …'` gives it one; "
            f"or send lines, without --rows"
        )
    return reader_of(schema.columns)


def _attach(store: str, stack: contextlib.ExitStack) -> tuple[Producer, Store | None]:
    """A producer, and the store itself if its stages run for this command.

    Another command may start them at the same moment: then this one waits for them. Raises
    StoreRunning if they do not come, and what Producer and Store.open raise.
    """
    from commitlog.disk.locks import is_running
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.producer import Producer
    from commitlog.store import Store

    directory, opened = StoreDirectory(store), None
    until = SYSTEM_CLOCK.monotonic_ns() + _PATIENCE_NS
    while True:
        try:
            return stack.enter_context(Producer(store)), opened
        except (StoreNotFound, StoreNotRunning, StoreStopped) as error:
            if opened is not None or isinstance(error, StoreMoved):
                raise
        is_late = SYSTEM_CLOCK.monotonic_ns() > until
        if is_running(directory, None) and not is_late:
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
            continue
        try:
            opened = stack.enter_context(Store.open(store))
        except StoreRunning:
            if is_late:
                raise


def _await_others(store: Store) -> None:
    """Waits for the producers of other processes: without the stages they could not go on."""
    is_told = False
    while store.running and (others := sum(lane.producer > 0 for lane in store.statistics().lanes)):
        if not is_told:
            needs = "needs" if others == 1 else "need"
            print_lines(
                [f"waiting for {counted(others, 'other producer')}, which {needs} the stages; Ctrl-C stops them"],
                err=True,
            )
            is_told = True
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"--header {text!r}: write NAME=VALUE")
    return name, value


@dataclass
class _Sending:
    """Sends lines in the way that the options ask for, and counts them."""

    topic: str
    key: str | None
    key_separator: str | None
    tags: str | None
    headers: dict[str, str]
    rows: bool = field(kw_only=True)
    sent: int = 0
    _read_row: Callable[[Any], Any] | None = None
    _interrupted: bool = False

    def send_all(
        self, store: str, address: Address | None, names: list[str], count: int | None, rate: float | None
    ) -> None:
        """Sends the first `count` lines of the files, and says how many are on disk."""
        from commitlog.record.properties import check_topic, encode_properties

        # Raises for a bad topic, key, tags or header before anything is made.
        overhead = len(check_topic(self.topic)) + len(encode_properties(self.key, self.tags, self.headers)) + 128
        with contextlib.ExitStack() as stack:
            opened: Store | None = None
            if self.rows:
                self._read_row = _row_reader(store, address, self.topic)
            if address is not None:
                from commitlog.remote.producer import RemoteProducer

                producer: AnyProducer = stack.enter_context(RemoteProducer.at(address))
            else:
                producer, opened = _attach(store, stack)
            try:
                batches = _batches(names, producer, overhead, count)
                for lines in batches if rate is None else _paced(batches, rate):
                    self._send_whole(producer, lines)
            except KeyboardInterrupt:
                self._flush(producer, "Ctrl-C")
                typer.echo(f"stopped: {self._result()}", err=True)
                raise
            except (CommitLogError, OSError) as error:
                self._flush(producer, str(error))
                raise InputError(f"stopped after {self._count()}, all of which are on disk: {error}") from error
            self._flush(producer, "the input has ended")
            typer.echo(self._result(), err=True)
            producer.close()
            if opened is not None:
                _await_others(opened)

    def _flush(self, producer: AnyProducer, why: str) -> None:
        """Flushes what was sent before the end. Raises InputError with its count if that fails."""
        try:
            producer.flush()
        except CommitLogError as error:
            raise InputError(
                f"stopped after {self._count()} ({why}); whether all of them are on disk is not known: {error}"
            ) from error

    def _count(self) -> str:
        return counted(self.sent, "row" if self.rows else "line")

    def _result(self) -> str:
        return f"{counted(self.sent, 'row' if self.rows else 'message')} sent to {self.topic}, all on disk"

    def _send_whole(self, producer: AnyProducer, lines: list[bytes]) -> None:
        """Sends some lines and counts them; a Ctrl-C meanwhile raises KeyboardInterrupt then."""
        earlier = signal.signal(signal.SIGINT, self._note_interrupt)
        try:
            self._send(producer, lines)
        except CommitLogError as error:
            self.sent += error.rows_sent
            if error.receipt is not None and not self.rows:
                self.sent += len(lines)  # they are in the log; only their flush came too late
            raise
        finally:
            signal.signal(signal.SIGINT, earlier)
        if self._interrupted:
            raise KeyboardInterrupt

    def _note_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupted = True

    def _send(self, producer: AnyProducer, lines: list[bytes]) -> None:
        topic, tags, headers = self.topic, self.tags, self.headers
        if self.rows:
            rows = [self._row(line) for line in lines if line.strip()]
            producer.send_rows(topic, rows, key=self.key, tags=tags, headers=headers)
            self.sent += len(rows)
            return
        if self.key_separator:
            keys, lines = self._split(lines, self.key_separator.encode())
            producer.send_batch(topic, lines, keys=keys, tags=tags, headers=headers)
        else:
            producer.send_batch(topic, lines, key=self.key, tags=tags, headers=headers)
        self.sent += len(lines)

    def _split(self, lines: list[bytes], separator: bytes) -> tuple[list[str | None], list[bytes]]:
        """A line without the separator, or with nothing before it, has no key."""
        keys: list[str | None] = []
        values = []
        for number, line in enumerate(lines):
            before, found, behind = line.partition(separator)
            try:
                keys.append(before.decode() or None if found else None)
            except UnicodeDecodeError:
                raise InputError(f"line {self.sent + number + 1}: its key is not UTF-8") from None
            values.append(behind if found else line)
        return keys, values

    def _row(self, line: bytes) -> Any:
        import orjson

        assert self._read_row is not None
        try:
            return self._read_row(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            raise InputError(f"a line is not JSON: {error}: {line[:80].decode(errors='replace')!r}") from None


def _paced(batches: Iterator[list[bytes]], rate: float) -> Iterator[list[bytes]]:
    """The lines in smaller batches, each at its time: no more than `rate` lines in a second."""
    step = max(int(rate * _PACE_SECONDS), 1)
    due = SYSTEM_CLOCK.monotonic_ns() / 1e9
    for lines in batches:
        for at in range(0, len(lines), step):
            now = SYSTEM_CLOCK.monotonic_ns() / 1e9
            if due > now:
                SYSTEM_CLOCK.sleep(due - now)
            part = lines[at : at + step]
            due = max(due, now) + len(part) / rate
            yield part


def _batches(names: list[str], producer: AnyProducer, overhead: int, count: int | None) -> Iterator[list[bytes]]:
    """The first `count` lines as they arrive, in batches that fit into a segment.

    A line that is too large for a batch is alone in its batch.
    """
    left = count
    for name in names:
        batch: list[bytes] = []
        size = 0
        for chunk in _lines_as_they_come(name, producer.message_bytes_max):
            for line in chunk if left is None else chunk[:left]:
                if batch and size + len(line) + overhead > producer.message_bytes_max:
                    yield batch
                    batch, size = [], 0
                batch.append(line)
                size += len(line) + overhead
            if batch:
                yield batch
                batch, size = [], 0
            if left is not None:
                left -= min(len(chunk), left)
                if not left:
                    return


def _lines_as_they_come(name: str, longest: int) -> Iterator[list[bytes]]:
    """The lines that each read of a file or of standard input completes.

    The last line may lack its newline. Raises MessageTooLarge for a line of more than `longest`
    bytes.
    """
    splitter = LineSplitter("standard input" if name == "-" else name, longest)
    fd = 0 if name == "-" else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while data := os.read(fd, _READ_BYTES):
            yield splitter.feed(data)
        yield splitter.end()
    finally:
        if fd:
            os.close(fd)
