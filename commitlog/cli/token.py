"""`commitlog token add|list|remove FILE`: who may use a server."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import JsonOption, print_json, print_lines
from commitlog.errors import IllegalArgument
from commitlog.text.lines import for_shell


class Action(StrEnum):
    """What to do with the tokens of a file."""

    ADD = "add"
    LIST = "list"
    REMOVE = "remove"


def token(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="add, list or remove.")],
    file: Annotated[
        Path, typer.Argument(readable=False, metavar="FILE", help="The file of tokens; made if it is missing.")
    ],
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Whose token it is.")] = "",
    topics: Annotated[
        str, typer.Option(metavar="NAMES", help="Topics, separated by commas; * stands for anything.")
    ] = "*",
    write: Annotated[bool, typer.Option("--write", help="It may append, too.")] = False,
    no_read: Annotated[bool, typer.Option("--no-read", help="It may not read.")] = False,
    json: JsonOption = False,
) -> None:
    """Add, list or remove the tokens that `serve --tokens` knows.

        commitlog token add tokens.json billing --topics 'orders*'
        commitlog token remove tokens.json billing

    `add` prints the token once; the file has only its hash. A running server sees the change.
    """
    from commitlog.serving.access import Access, Tokens, add_token, remove_token

    if not name and action is not Action.LIST:
        raise IllegalArgument(f"{action} needs a NAME: commitlog token {action} {for_shell(file)} billing")
    if name and action is Action.LIST:
        raise IllegalArgument("list takes no NAME: it shows all tokens")
    if action is not Action.ADD and (topics != "*" or write or no_read):
        raise typer.BadParameter("--topics, --write and --no-read are for `add`: a token is removed as a whole")
    if action is Action.REMOVE and json:
        raise typer.BadParameter("--json is for `add` and `list`")
    match action:
        case Action.ADD:
            chosen = tuple(topic.strip() for topic in topics.split(",") if topic.strip())
            made = add_token(file, Access(name, chosen, read=not no_read, write=write))
            print_json({"name": name, "token": made}) if json else typer.echo(made)
        case Action.REMOVE:
            remove_token(file, name)
        case Action.LIST:
            known = [entry.access for entry in Tokens(file).all()]
            if json:
                print_json({"tokens": [asdict(access) for access in known]})
            for access in known if not json else ():
                may = " and ".join(word for word, is_so in (("read", access.read), ("write", access.write)) if is_so)
                print_lines([f"{access.name}: {may or 'nothing'}, topics {', '.join(access.topics)}"])
