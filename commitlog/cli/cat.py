"""`commitlog cat STORE`: prints the messages of a live or stopped store, or of a RocketMQ root."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, cast

import typer

from commitlog.cli.completion import topics_of
from commitlog.cli.message_formats import Write, as_value, format_of
from commitlog.cli.output import discard_output
from commitlog.cli.served import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    StoreOrUrlArgument,
    TokenFileOption,
    served_address,
)
from commitlog.cli.where_option import where_condition
from commitlog.text.lines import for_terminal

if TYPE_CHECKING:
    from commitlog.client.reader import Reader
    from commitlog.planning.address import Address


class Isolation(StrEnum):
    flushed = "flushed"
    committed = "committed"
    accepted = "accepted"


TopicOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only this topic; may be given again.", autocompletion=topics_of),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from", metavar="WHERE", help="earliest, latest, 'last 100', '10 minutes ago', an ISO time, or an offset."
    ),
]
PartitionOption = Annotated[
    list[int] | None, typer.Option(metavar="N", min=0, help="Only this one, a lane's number; may be given again.")
]
CountOption = Annotated[
    int | None,
    typer.Option("--count", "-n", metavar="N", min=0, help="Stop after N messages. The last: --from 'last N'."),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Only messages with this header; or key=…, tags=…. All of several must hold."
    ),
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="value: a line each; json: an object each; or a text with %t topic, %p partition, %o offset, %k key, "
        "%s value, %h headers, %g tags, %T time in ms, %K and %S sizes in bytes.",
    ),
]


def cat(
    store: StoreOrUrlArgument,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    start: StartOption = "earliest",
    count: CountOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")] = False,
    where: WhereOption = None,
    form: FormatOption = "value",
    rows: Annotated[bool, typer.Option("--rows", help="The rows of a typed topic, one JSON object each.")] = False,
    isolation: Annotated[
        Isolation, typer.Option(metavar="LEVEL", help="How far to read: flushed, committed or accepted.")
    ] = Isolation.flushed,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Go on behind damaged records, and count them at the end.")
    ] = False,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
) -> None:
    r"""Print messages, also those of a RocketMQ store root.

        commitlog cat data/events --topic orders --from "10 minutes ago"
        commitlog cat data/events -f --format '%t %p %o %k %s\n'
        commitlog cat commitlog+tls://host:4433/events --token-file token

    Lanes are merged by time. All that is there is printed, from --from on; -n takes the first of
    it, as `head -n` and `kcat -c` do.
    """
    from commitlog.client.reader import Reader
    from commitlog.errors import CommitLogError

    terminal = sys.stdout.isatty()  # a pipe gets the bytes as they are
    write = format_of(form, terminal=terminal)
    wanted = [where_condition(text) for text in where or []]
    out = cast(BinaryIO, sys.stdout.buffer)
    files = (token_file, ca_file, cert_file, key_file)
    address = served_address(store, *files)
    try:
        if rows:
            if follow or wanted or partition or form != "value" or len(topic or []) != 1:
                raise typer.BadParameter(
                    "--rows needs one --topic, and goes without -f, --partition, --where and --format"
                )
            if isolation is Isolation.accepted:
                raise typer.BadParameter("--rows takes --isolation flushed or committed: other rows are in no file yet")
            lines = _rows(address or store, (topic or [""])[0], start, isolation, skip_corrupt)
            _print_rows(out, map(for_terminal, lines) if terminal else lines, count)
        else:
            chosen: dict[str, Any] = {
                "lanes": partition or None,
                "isolation": isolation.value,
                "ignore_corrupt": skip_corrupt,
            }
            with Reader(cast(str, address or store), topic or None, start=start, follow=follow, **chosen) as reader:
                if write is as_value and not wanted and not follow and not skip_corrupt and not reader.one_log:
                    _print_values(out, reader, count)
                else:
                    messages = (message for message in reader if all(holds(message) for holds in wanted))
                    _print(out, messages, write, count, at_once=follow)
        out.flush()
    except (KeyboardInterrupt, CommitLogError) as error:  # first print the good messages before it
        if isinstance(error, CommitLogError):
            with contextlib.suppress(OSError):  # the end of the command tries it again, and says so
                out.flush()
            raise
        out.flush()
        if not follow:
            raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has seen enough
        discard_output()


def _print(out: BinaryIO, messages: Iterator[Any], write: Write, count: int | None, *, at_once: bool) -> None:
    if count == 0:
        return
    for number, message in enumerate(messages, start=1):
        out.write(write(message))
        if at_once:
            out.flush()
        if number == count:  # without a look for one more, which may never come
            return


def _print_values(out: BinaryIO, reader: Reader, count: int | None) -> None:
    left = sys.maxsize if count is None else count
    for values in reader.value_lists():
        part = values[:left]
        if part:
            out.write(b"\n".join(part))
            out.write(b"\n")
        left -= len(part)
        if not left:
            return


def _rows(place: Address | str, topic: str, start: str, isolation: Isolation, skip_corrupt: bool) -> Iterator[bytes]:
    from commitlog.columns.read_plan import ReadOptions
    from commitlog.reading.starting_point import parse_starts
    from commitlog.remote.topic_reading import WantedRange, open_topic
    from commitlog.schemas.row_lines import lines_of

    level: Literal["flushed", "committed"] = "committed" if isolation is Isolation.committed else "flushed"
    options = ReadOptions(level, ignore_corrupt=skip_corrupt, reader="cat")
    wanted = WantedRange(topic, parse_starts(start), parse_starts("latest"), options, values="columns")
    for batch in open_topic(place, wanted):
        yield from lines_of(batch)


def _print_rows(out: BinaryIO, lines: Iterator[bytes], count: int | None) -> None:
    for line in itertools.islice(lines, None if count is None else min(count, sys.maxsize)):
        out.write(line)
