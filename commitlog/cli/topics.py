"""`commitlog topics STORE`: its topics, how large, how old; makes, trims or deletes one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.cli.arguments import JsonOption, confirm, print_json, print_lines, shown_facts
from commitlog.cli.served import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    StoreOrUrlArgument,
    TokenFileOption,
    served_address,
)
from commitlog.errors import CommitLogError, DamagedFile, StoreNotFound
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.quantities import counted, shown_time

if TYPE_CHECKING:
    from commitlog.reading.topic_index import TopicIndex
    from commitlog.reading.topic_trim import Trim
    from commitlog.reading.view import StoreView

_LATE_MS = 2_000
"""Times further ahead than this are not those of this machine's clock as it is now."""


def topics(
    store: StoreOrUrlArgument,
    columns: Annotated[bool, typer.Option("--columns", help="Show the columns of typed topics.")] = False,
    json: JsonOption = False,
    create: Annotated[
        str | None,
        typer.Option("--create", metavar="TOPIC", help="Make this typed topic, and STORE if it is missing."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="With --create: as in 'id BIGINT NOT NULL, name STRING'."),
    ] = None,
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
    """List the topics of STORE; make a typed one, trim or delete one.

        commitlog topics data/events --columns
        commitlog topics data/events --create sales --schema "id INT, name STRING"
        commitlog topics data/events --trim orders --before "3 days ago"
        commitlog topics data/events --delete orders
        commitlog topics commitlog+tls://host:4433/events --token-file token

    A topic without a schema needs no --create: its first message makes it. Schemas grow in Python,
    by Store.create_topic. What is trimmed or deleted can't be read any more. It frees no disk at
    once: the log holds all topics, and its bytes leave with their segments. Where topics can't be
    read, it shows how large the log is, and the exit code is 1.
    """
    _check_options(create, schema, delete, trim, before)
    if (columns or json) and (create, delete, trim) != (None, None, None):
        raise typer.BadParameter("--columns and --json are for the list: they go without --create, --trim and --delete")
    address = served_address(store, token_file, ca_file, cert_file, key_file)
    if address is not None and (create, delete, trim) != (None, None, None):
        raise typer.BadParameter("--create, --delete and --trim need the store's directory, on its machine")
    if create is not None and schema is not None:
        _create(Path(store), create, schema)
        return
    if delete is not None:
        _delete(Path(store), delete, force=force, yes=yes)
        return
    if trim is not None and before is not None:
        _trim(Path(store), trim, before, force=force, yes=yes)
        return
    if address is None:
        found, log, damage = _topics(Path(store))
    else:
        from commitlog.remote.remote_index import served_topics

        found, log, damage = served_topics(address), "", None
    if json:
        print_json({"topics": found, "index_damage": str(damage or "")})
    else:
        print_lines([log] if damage else _lines(found, columns=columns))
    if damage:
        raise damage


def _check_options(
    create: str | None, schema: str | None, delete: str | None, trim: str | None, before: str | None
) -> None:
    if [create, trim, delete].count(None) < 2:
        raise typer.BadParameter("give one of --create, --trim and --delete")
    if (create is None) != (schema is None):
        raise typer.BadParameter(
            "--create TOPIC and --schema COLUMNS go together, such as --create sales --schema 'id BIGINT, name STRING'"
        )
    if (trim is None) != (before is None):
        raise typer.BadParameter(
            "--trim TOPIC and --before TO go together, such as --trim orders --before '3 days ago'"
        )


# ---- the list ----------------------------------------------------------------------------------


def _topics(store: Path) -> tuple[list[dict[str, Any]], str, CommitLogError | None]:
    """All topics.

    Where what tells of them is damaged, there is none, but a line about the log, and the error.
    """
    from commitlog.inspecting.topic_list import topic_list

    try:
        return topic_list(store), "", None
    except PermissionError:
        raise
    except (DamagedFile, OSError) as error:
        from commitlog.watching.store_facts import index_error

        return [], _log_line(store), index_error(error)


def _log_line(store: Path) -> str:
    from commitlog.reading.view import open_view

    with contextlib.closing(open_view(store)) as view:
        limits = {lane: view.limits(lane) for lane in view.lanes()}
    size = sum(lane.flushed - max(lane.first, 0) for lane in limits.values())
    return f"the log has {size:,} bytes, in lanes {', '.join(map(str, limits)) or 'none'}; its topics are not known"


def _lines(found: list[dict[str, Any]], *, columns: bool) -> Iterator[str]:
    if not found:
        yield "no topics; a producer's first message makes one"
    for one in found:
        about = "about " if one["bytes_are_estimated"] else ""
        lanes = f"lane{'s' * (len(one['lanes']) != 1)} {', '.join(map(str, one['lanes'])) or 'none'}"
        version = f", schema version {one['schema']['version']}" if one["schema"] else ""
        there = counted(one["messages"], "message")
        yield f"{one['topic']}: {there}, {about}{counted(one['bytes'], 'byte')}, {lanes}{version}"
        if one["first_timestamp"] is not None:
            first, last = shown_time(one["first_timestamp"]), shown_time(one["last_timestamp"])
            yield f"    stored {first} to {last}"
            ahead = one["last_timestamp"] > SYSTEM_CLOCK.wall_ms() + _LATE_MS
            why = "; the newest is stored later than now: the clock was ahead" if ahead else ""
            yield f"    last minute {one['messages_per_second']:,.2f} messages/s{why}"
        for column in one["schema"]["columns"] if columns and one["schema"] else ():
            yield f"    {column['name']} {column['type']}{'' if column['nullable'] else ' NOT NULL'}"


# ---- create ------------------------------------------------------------------------------------


def _create(store: Path, topic: str, columns: str) -> None:
    from commitlog.client.store import Store
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.disk.writable_topic import check_writable_name
    from commitlog.reading.used_versions import used_version
    from commitlog.schemas.declaring import declared_schema
    from commitlog.schemas.topic_schemas import TopicSchemas

    schema = declared_schema(columns)
    check_writable_name(topic)
    directory = StoreDirectory(store)
    try:
        directory.load()
    except StoreNotFound:
        Store.open(store).close()
    made = TopicSchemas(directory).declare(topic, schema, evolve=False, used=lambda: used_version(directory, topic))
    print_lines([f"{topic} has schema {made}"])


# ---- trim and delete ---------------------------------------------------------------------------


def _trim(store: Path, topic: str, before: str, *, force: bool, yes: bool) -> None:
    from commitlog.reading.topic_facts import facts_below
    from commitlog.reading.topic_index import current_index
    from commitlog.reading.topic_trim import carry_out, check_readers, parse_before, plan_trim
    from commitlog.reading.view import StoreView

    starts = parse_before(topic, before)
    view = StoreView(store)
    with current_index(view) as index:

        def checked() -> Trim:
            plan = plan_trim(index, topic, starts)
            if not force:
                check_readers(index, plan)
            return plan

        plan = checked()
        if not yes and plan.messages:
            print_lines(
                [f"{topic}: {shown_facts(facts_below(index, topic, plan.before))} would go; {plan.kept:,} stay"]
            )
            confirm("Trim them?")
            index.refresh()  # a backup may have been restored meanwhile, or a named reader may have come
            plan = checked()
        if plan.messages:
            carry_out(view, plan)
    print_lines([f"trimmed {counted(plan.messages, 'message')} of {topic}, kept {plan.kept:,}; {_LATER}"])


_LATER = "the disk space comes back when the segments are deleted"


def _delete(store: Path, topic: str, *, force: bool, yes: bool) -> None:
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.inspecting.topic_list import newest_schemas
    from commitlog.reading.topic_facts import facts_below
    from commitlog.reading.topic_index import current_index
    from commitlog.reading.topic_trim import carry_out, check_nothing_came
    from commitlog.reading.view import StoreView

    view = StoreView(store)
    with current_index(view) as index:
        is_typed = topic in newest_schemas(StoreDirectory(store))
        plan = _checked(view, index, topic, typed=is_typed, force=force)
        if not yes:
            also = " and its schema" if is_typed else ""
            print_lines([f"{topic}: {shown_facts(facts_below(index, topic, plan.before))}{also} would go"])
            confirm("Delete the topic?")
            index.refresh()  # more may have come meanwhile
            plan = _checked(view, index, topic, typed=is_typed, force=force)
        carry_out(view, plan)
        if is_typed:
            from commitlog.schemas.topic_schemas import TopicSchemas

            TopicSchemas(StoreDirectory(store)).delete(topic, partial(check_nothing_came, view, index, plan))
    print_lines([f"deleted {topic} with {counted(plan.messages, 'message')}; {_LATER}"])


def _checked(view: StoreView, index: TopicIndex, topic: str, *, typed: bool, force: bool) -> Trim:
    """What the deletion takes. Raises IllegalTopic, UnknownTopic, TopicInUse."""
    from commitlog.reading.known_topics import check_known
    from commitlog.reading.topic_trim import check_at_rest, check_readers, check_written, plan_deletion

    check_known(view.path, index, [topic])
    check_written(view)
    if typed:
        check_at_rest(view, index, topic)
    plan = plan_deletion(index, topic)
    if not force:
        check_readers(index, plan)
    return plan
