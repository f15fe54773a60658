"""`commitlog produce STORE TOPIC [FILE…]`: one message a line, or the rows of a typed topic.

STORE may be the URL of a served store: then a RemoteProducer sends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.cli.arguments import STORE_VARIABLE, print_lines
from commitlog.cli.arguments import rate as messages_a_second
from commitlog.cli.completion import topics_of
from commitlog.cli.message_formats import unescaped
from commitlog.cli.served import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    StoreOrUrlArgument,
    TokenFileOption,
    served_address,
)
from commitlog.errors import (
    CommitLogError,
    IllegalProperty,
    IllegalRow,
    InputError,
    MessageTooLarge,
    NoSchema,
    PropertiesTooLarge,
    RecordError,
    StoreMoved,
    StoreNotFound,
    StoreNotRunning,
    StoreRunning,
    StoreStopped,
    TopicNotWritable,
)
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.lines import LineSplitter, for_shell, printable, why_unreadable
from commitlog.text.quantities import counted
from commitlog.text.text_files import TextFile

if TYPE_CHECKING:
    from commitlog.client.producer import Producer
    from commitlog.client.store import Store
    from commitlog.planning.address import Address
    from commitlog.remote.remote_producer import RemoteProducer

    AnyProducer = Producer | RemoteProducer

_READ_BYTES = 1 << 18
_PACE_SECONDS = 0.05
"""How many seconds of lines are in one batch, about, if `--rate` is given."""
_LOOK_SECONDS = 0.05
_ENDS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_NS = 60_000_000_000
"""How long the command waits for stages that another command starts."""


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
    rate: Annotated[
        float | None, typer.Option(parser=messages_a_second, metavar="N", help="At most N messages a second.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after N lines.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="A line is a row of a typed topic, as a JSON object.")] = False,
    skip_long: Annotated[
        bool, typer.Option("--skip-long", help="Pass over lines that are too long, and count them.")
    ] = False,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
) -> None:
    """Send each line as a message; all are on disk at the end.

        tail -n 0 -F app.log | commitlog produce data/events logs --key web-1
        commitlog produce data/events orders orders.tsv -K : --header source=shop

    A STORE that is missing is made. Where its stages do not run, they run for as long as this
    command does, and it ends after all who send through them. Ctrl-C and SIGTERM flush what was
    sent, and say how much that is; the exit code of a Ctrl-C is 130. Where COMMITLOG_STORE is
    set, STORE is left out: `commitlog produce TOPIC [FILE]...`.
    """
    _check_place(topic)
    if key_separator == "":
        raise typer.BadParameter("--key-separator is empty; give what stands between key and value")
    if key_separator and (key or rows):
        raise typer.BadParameter("--key-separator goes without --key and --rows")
    names = files or ["-"]
    for name in names:
        reason = None if name == "-" else why_unreadable(name)
        if reason:
            raise InputError(f"{name}: {reason}; nothing was sent")
    separator = unescaped(key_separator or "", "--key-separator")
    how = _Sending(topic, key, separator, tags, _headers(header or []), rows=rows, skips=skip_long)
    address = served_address(store, token_file, ca_file, cert_file, key_file)
    earlier = signal.signal(signal.SIGTERM, how.interrupt)
    try:
        try:
            how.send_all(store, address, names, count, rate)
        finally:
            signal.signal(signal.SIGTERM, earlier)
    except KeyboardInterrupt:
        if how.ended_by is signal.SIGTERM:  # as who has sent it expects
            os.kill(os.getpid(), signal.SIGTERM)
        raise


def _check_place(topic: str) -> None:
    """Raises typer.BadParameter where a store stands in the topic's place."""
    named = os.environ.get(STORE_VARIABLE)
    if named and ("/" in topic or (Path(topic) / "store.json").exists()):
        raise typer.BadParameter(
            f"{topic!r} is no topic. {STORE_VARIABLE} is set ({named}), so STORE is left out: "
            f"commitlog produce TOPIC [FILE]...; or unset it"
        )


def _row_reader(store: str, address: Address | None, topic: str) -> Callable[[Any], Any]:
    """Returns the function that makes a row of a line's JSON.

    Raises NoSchema before a store is made.
    """
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.schemas.row_lines import reader_of
    from commitlog.schemas.topic_schemas import TopicSchemas

    if address is not None:
        from commitlog.remote.remote_index import typed_topics

        schema = typed_topics(address, (topic,)).get(topic)
    else:
        schema = TopicSchemas(StoreDirectory(store)).latest(topic)
    if schema is None:
        raise NoSchema(
            f"topic {topic} has no schema: `commitlog topics {for_shell(store)} --create {for_shell(topic)} "
            f"--schema 'id BIGINT, …'` gives it one; "
            f"or send lines, without --rows"
        )
    return reader_of(schema.columns)


def _attach(store: str, stack: contextlib.ExitStack) -> tuple[Producer, Store | None]:
    """A producer, and the store itself if its stages run for this command, as they ran last.

    Another command may start them at the same moment: then this one waits for them. Raises
    StoreRunning if they do not come, StoreRefused for a backup, and what Producer and Store.open
    raise.
    """
    from commitlog.client.producer import Producer
    from commitlog.client.store import Store
    from commitlog.disk.locks import is_running
    from commitlog.disk.store_directory import StoreDirectory, refuse_backup

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
        refuse_backup(directory)
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


def _headers(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"--header {text!r}: write NAME=VALUE")
        if name in found:
            raise typer.BadParameter(
                f"--header {text!r}: {name!r} is there twice; a message has one value for each name, as RocketMQ's have"
            )
        found[name] = value
    return found


@dataclass
class _Sending:
    """Sends lines in the way that the options ask for, and counts them."""

    topic: str
    key: str | None
    key_separator: bytes
    tags: str | None
    headers: dict[str, str]
    rows: bool = field(kw_only=True)
    skips: bool = field(kw_only=True)
    sent: int = 0
    skipped: int = 0
    _read_row: Callable[[Any], Any] | None = None
    ended_by: signal.Signals | None = None
    """The signal that has ended it, of Ctrl-C or SIGTERM."""

    def send_all(
        self, store: str, address: Address | None, names: list[str], count: int | None, rate: float | None
    ) -> None:
        """Sends the first `count` lines of the files, and says how many are on disk."""
        from commitlog.disk.writable_topic import check_writable_name
        from commitlog.record.properties import encode_properties

        # Raises for a bad topic, key, tags or header before anything is made.
        topic, properties = check_writable_name(self.topic), encode_properties(self.key, self.tags, self.headers)
        overhead = len(topic) + len(properties) + 128
        with contextlib.ExitStack() as stack:
            opened: Store | None = None
            if self.rows:
                self._read_row = _row_reader(store, address, self.topic)
            if address is not None:
                from commitlog.remote.remote_producer import RemoteProducer

                producer: AnyProducer = stack.enter_context(RemoteProducer.at(address))
            else:
                producer, opened = _attach(store, stack)
            try:
                batches = self._batches(names, producer, overhead, count)
                for part in batches if rate is None else _paced(batches, rate):
                    self._send_whole(producer, part)
            except KeyboardInterrupt:
                self._flush(producer, "SIGTERM" if self.ended_by is signal.SIGTERM else "Ctrl-C")
                typer.echo(f"stopped: {self._result()}", err=True)
                raise
            except (CommitLogError, OSError) as error:
                self._flush(producer, str(error))
                if isinstance(error, TopicNotWritable) and not self.sent:
                    raise
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
        skipped = f"; {counted(self.skipped, 'line')} skipped, longer than a message may be" if self.skipped else ""
        return f"{counted(self.sent, 'row' if self.rows else 'message')} sent to {self.topic}, all on disk{skipped}"

    def _send_whole(self, producer: AnyProducer, part: _Part) -> None:
        """Sends some lines and counts them; a Ctrl-C meanwhile raises KeyboardInterrupt then."""
        earlier = [signal.signal(number, self._note_interrupt) for number in _ENDS]
        try:
            self._send(producer, part)
        except CommitLogError as error:
            self.sent += error.rows_sent
            if error.receipt is not None and not self.rows:
                self.sent += len(part.lines)  # they are in the log; only their flush came too late
            raise
        finally:
            for number, handler in zip(_ENDS, earlier, strict=True):
                signal.signal(number, handler)
        if self.ended_by:
            raise KeyboardInterrupt

    def _note_interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = signal.Signals(number)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ends it where it is: the handler of SIGTERM."""
        self._note_interrupt(number, frame)
        raise KeyboardInterrupt

    def _send(self, producer: AnyProducer, part: _Part) -> None:
        topic, tags, headers, lines = self.topic, self.tags, self.headers, part.lines
        if self.rows:
            self._send_rows(producer, part)
        elif self.key_separator:
            keys, values, wrong = self._split(part)
            try:
                producer.send_batch(topic, values, keys=keys, tags=tags, headers=headers)
            except (IllegalProperty, PropertiesTooLarge):  # nothing was sent
                if (bad := self._first_bad_key(keys)) is None:
                    raise
                number, why = bad
                wrong, values = InputError(f"{part.place(number)}: {why}"), values[:number]
                producer.send_batch(topic, values, keys=keys[:number], tags=tags, headers=headers)
            self.sent += len(values)
            if wrong is not None:
                raise wrong
        else:
            producer.send_batch(topic, lines, key=self.key, tags=tags, headers=headers)
            self.sent += len(lines)

    def _send_rows(self, producer: AnyProducer, part: _Part) -> None:
        """Sends the rows up to the first line that is none. Raises InputError, which names it."""
        rows, places, wrong = list[Any](), list[str](), None
        for number, line in enumerate(part.lines):
            if line.strip():
                try:
                    rows.append(self._row(part, number))
                except InputError as error:
                    wrong = error
                    break
                places.append(part.place(number))
        while rows:
            try:
                producer.send_rows(self.topic, rows, key=self.key, tags=self.tags, headers=self.headers)
                break
            except IllegalRow as error:  # nothing was sent
                if error.row < 0:
                    raise
                why = str(error).removeprefix(f"row {error.row}").lstrip(",: ")
                wrong = InputError(f"{places[error.row]}: {why}")
                del rows[error.row :]  # columns are looked at one by one: one before it may be wrong, too
            except MessageTooLarge as error:
                named = InputError(f"{places[error.rows_sent]}: {error}")
                named.rows_sent = error.rows_sent
                raise named from error
        self.sent += len(rows)
        if wrong is not None:
            raise wrong

    def _split(self, part: _Part) -> tuple[list[str | None], list[bytes], InputError | None]:
        """Keys and values up to the first line whose key can't be sent, and that line's error.

        A line without the separator, or with nothing before it, has no key.
        """
        keys, values = list[str | None](), list[bytes]()
        for number, line in enumerate(part.lines):
            before, found, behind = line.partition(self.key_separator)
            try:
                keys.append(before.decode() or None if found else None)
            except UnicodeDecodeError:
                return keys, values, InputError(f"{part.place(number)}: its key is not UTF-8")
            values.append(behind if found else line)
        return keys, values, None

    def _first_bad_key(self, keys: list[str | None]) -> tuple[int, RecordError] | None:
        """The number of the first key that no message can have, and why."""
        from commitlog.record.properties import encode_properties

        for number, key in enumerate(keys):
            try:
                encode_properties(key, self.tags, self.headers)
            except RecordError as error:
                return number, error
        return None

    def _row(self, part: _Part, number: int) -> Any:
        import orjson

        assert self._read_row is not None
        line = part.lines[number]
        shown = line[:80].decode(errors="replace")
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{part.place(number)} is not JSON: {error}: {shown!r}") from None
        if not isinstance(found, dict):
            raise InputError(f"{part.place(number)} is no JSON object: {shown!r}")
        return self._read_row(found)

    def _batches(self, names: list[str], producer: AnyProducer, overhead: int, count: int | None) -> Iterator[_Part]:
        """The first `count` lines as they arrive, in batches that fit into a segment.

        A line that is too large for a batch is alone in its batch.
        """
        left = count
        for name in names:
            for chunk in self._as_they_come(name, producer.message_bytes_max, overhead):
                first, size, at = 0, 0, 0
                lines = chunk.lines if left is None else chunk.lines[:left]
                for at, line in enumerate(lines):
                    if at > first and size + len(line) + overhead > producer.message_bytes_max:
                        yield _Part(chunk.name, chunk.first + first, lines[first:at])
                        first, size = at, 0
                    size += len(line) + overhead
                if lines:
                    yield _Part(chunk.name, chunk.first + first, lines[first:])
                if left is not None:
                    left -= len(lines)
                    if not left:
                        return

    def _as_they_come(self, name: str, longest: int, overhead: int) -> Iterator[_Part]:
        """The lines that each read of a file or of standard input completes.

        The last line may lack its newline. Raises InputError, and MessageTooLarge for a line of
        more than `longest` bytes.
        """
        shown = "standard input" if name == "-" else name
        splitter = LineSplitter(shown, longest - overhead if self.skips else longest, skips=self.skips)
        fd = 0 if name == "-" else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        skipped = self.skipped
        try:
            text = TextFile(shown, fd, lambda said: print_lines([f"commitlog: {printable(said)}"], err=True))
            while data := _read(text):
                first = splitter.lines + 1
                lines = splitter.feed(data)
                self.skipped = skipped + splitter.skipped
                yield _Part(shown, first, lines)
            first = splitter.lines + 1
            yield _Part(shown, first, splitter.end())
        finally:
            if fd:
                os.close(fd)


@dataclass
class _Part:
    """Lines that follow each other in an input, and the number of the first, from 1 on."""

    name: str
    first: int
    lines: list[bytes]

    def place(self, number: int) -> str:
        return f"{self.name}: line {self.first + number}"


def _read(text: TextFile) -> bytes:
    """The next bytes, none at the end. It waits for a pipe that somebody made non-blocking."""
    while (data := text.read(_READ_BYTES)) is None:
        ready = select.poll()
        ready.register(text.descriptor, select.POLLIN)
        ready.poll()
    return data


def _paced(batches: Iterator[_Part], rate: float) -> Iterator[_Part]:
    """The lines in smaller batches, each at its time: no more than `rate` lines in a second."""
    step = max(int(rate * _PACE_SECONDS), 1)
    due = SYSTEM_CLOCK.monotonic_ns() / 1e9
    for batch in batches:
        for at in range(0, len(batch.lines), step):
            now = SYSTEM_CLOCK.monotonic_ns() / 1e9
            if due > now:
                SYSTEM_CLOCK.sleep(due - now)
            part = _Part(batch.name, batch.first + at, batch.lines[at : at + step])
            due = max(due, now) + len(part.lines) / rate
            yield part
