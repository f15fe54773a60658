"""`commitlog topics STORE`: what topics there are, how large and how old; trims or deletes one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.cli.arguments import JsonOption, print_json
from commitlog.cli.served import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    StoreOrUrlArgument,
    TokenFileOption,
    served_address,
)

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.trimming import Trim
    from commitlog.reading.view import StoreView


def topics(
    store: StoreOrUrlArgument,
    schema: Annotated[bool, typer.Option("--schema", help="Show the columns of typed topics.")] = False,
    json: JsonOption = False,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="TOPIC", help="Delete this topic: all its messages, its schema.")
    ] = None,
    trim: Annotated[
        str | None,
        typer.Option("--trim", metavar="TOPIC", help="Take the oldest messages of this topic: see --before."),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TO",
            help="With --trim: what comes before '10 minutes ago', an ISO time, 'last 100', latest, an offset of every "
            "lane, or offsets such as '{\"0\": 42}'.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Trim or delete what a named reader has not read, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
) -> None:
    """List the topics of STORE, or trim or delete one.

        commitlog topics data/events --schema
        commitlog topics data/events --trim orders --before "3 days ago"
        commitlog topics data/events --delete orders
        commitlog topics commitlog+tls://host:4433/events --token-file token

    What is trimmed or deleted can't be read any more. It frees no disk at once: the log holds all
    topics, and its bytes leave with their segments.
    """
    from commitlog.inspecting.topic_list import topic_list

    _check_options(delete, trim, before)
    address = served_address(store, token_file, ca_file, cert_file, key_file)
    if address is not None and (delete is not None or trim is not None):
        raise typer.BadParameter("--delete and --trim need the store's directory, on its machine")
    if delete is not None:
        _delete(Path(store), delete, force=force, yes=yes)
        return
    if trim is not None and before is not None:
        _trim(Path(store), trim, before, force=force, yes=yes)
        return
    if address is None:
        found = topic_list(store)
    else:
        from commitlog.remote.store_index import served_topics

        found = served_topics(address)
    if json:
        print_json({"topics": found})
        return
    for line in _lines(found, columns=schema):
        typer.echo(line)


def _check_options(delete: str | None, trim: str | None, before: str | None) -> None:
    if delete is not None and trim is not None:
        raise typer.BadParameter("give --delete or --trim, not both")
    if (trim is None) != (before is None):
        raise typer.BadParameter(
            "--trim TOPIC and --before TO go together, such as --trim orders --before '3 days ago'"
        )


# ---- the list ----------------------------------------------------------------------------------


def _lines(found: list[dict[str, Any]], *, columns: bool) -> Iterator[str]:
    if not found:
        yield "no topics; a producer's first message makes one"
    for one in found:
        about = "about " if one["bytes_are_estimated"] else ""
        lanes = ", ".join(map(str, one["lanes"])) or "none"
        version = f", schema version {one['schema']['version']}" if one["schema"] else ""
        yield f"{one['topic']}: {one['messages']:,} messages, {about}{one['bytes']:,} bytes, lanes {lanes}{version}"
        if one["first_timestamp"] is not None:
            first, last = _time(one["first_timestamp"]), _time(one["last_timestamp"])
            yield f"    stored {first} to {last}; last minute {one['messages_per_second']:,.2f} messages/s"
        for column in one["schema"]["columns"] if columns and one["schema"] else ():
            yield f"    {column['name']} {column['type']}{'' if column['nullable'] else ' NOT NULL'}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")


# ---- trim and delete ---------------------------------------------------------------------------


def _trim(store: Path, topic: str, before: str, *, force: bool, yes: bool) -> None:
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.trimming import carry_out, check_readers, parse_before, plan_trim
    from commitlog.reading.view import StoreView

    starts = parse_before(topic, before)
    view = StoreView(store)
    try:
        index = TopicIndex(view)
        index.refresh()
        plan = plan_trim(index, topic, starts)
        if not force:
            check_readers(index, plan)
        if not yes and plan.messages:
            typer.confirm(f"Trim {plan.messages:,} messages of {topic}, and keep {plan.kept:,}?", abort=True)
        if plan.messages:
            carry_out(view, plan)
    finally:
        view.close()
    typer.echo(f"trimmed {plan.messages:,} messages of {topic}, {plan.kept:,} are kept; {_LATER}")


_LATER = "the disk space comes back when the segments are deleted"


def _delete(store: Path, topic: str, *, force: bool, yes: bool) -> None:
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.inspecting.topic_list import newest_schemas
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.trimming import carry_out
    from commitlog.reading.view import StoreView

    view = StoreView(store)
    try:
        index = TopicIndex(view)
        index.refresh()
        is_typed = topic in newest_schemas(StoreDirectory(store))
        plan = _checked(view, index, topic, typed=is_typed, force=force)
        if not yes:
            also = " and its schema" if is_typed else ""
            typer.confirm(f"Delete {topic} with {plan.messages:,} messages{also}?", abort=True)
            index.refresh()  # more may have come meanwhile
            plan = _checked(view, index, topic, typed=is_typed, force=force)
        carry_out(view, plan)
        if is_typed:
            from commitlog.schemas.topic_schemas import TopicSchemas

            TopicSchemas(StoreDirectory(store)).delete(topic)
    finally:
        view.close()
    typer.echo(f"deleted {topic} with {plan.messages:,} messages; {_LATER}")


def _checked(view: StoreView, index: TopicIndex, topic: str, *, typed: bool, force: bool) -> Trim:
    """What the deletion takes. Raises UnknownTopic, TopicInUse."""
    from commitlog.reading.trimming import check_known, check_producers, check_readers, plan_deletion

    if typed:  # it may have a schema, and no message yet
        check_producers(view, topic)
    else:
        check_known(index, topic)
    plan = plan_deletion(index, topic)
    if not force:
        check_readers(index, plan)
    return plan
