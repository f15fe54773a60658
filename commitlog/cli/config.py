"""`commitlog config`: prints a configuration, with a comment for every knob, or what differs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from commitlog.cli.arguments import print_json


class Name(StrEnum):
    default = "default"
    durable = "durable"
    rocketmq = "rocketmq"


def config(
    name: Annotated[
        Name,
        typer.Argument(
            metavar="NAME",
            help="default: every knob; durable: `send` returns when its message is on the disk; rocketmq: its numbers.",
        ),
    ] = Name.default,
    effective: Annotated[
        Path | None,
        typer.Option(
            readable=False, metavar="STORE", help="In place of NAME: what this store runs with, or ran with last."
        ),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only the knobs that differ from the default.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: section, knob, value.")] = False,
) -> None:
    """Print a configuration file: all knobs, or what a store uses.

        commitlog config durable > my.toml
        commitlog config --effective data/events --diff

    The file is for `commitlog run --config` and `Store.open(config=…)`. It may leave out what keeps
    its default.
    """
    if effective is not None and name is not Name.default:
        raise typer.BadParameter(f"--effective is in place of NAME: leave out {name}")
    text = files("commitlog").joinpath("configs", f"{name}.toml").read_text(encoding="utf-8")
    if effective is None and not diff and not json:
        typer.echo(text, nl=False)
        return
    values = _values(text, effective)
    if diff:
        values = _different(values)
    if json:
        print_json(values)
        return
    for line in _lines(values):
        typer.echo(line)


def _values(text: str, effective: Path | None) -> dict[str, dict[str, Any]]:
    """Section → knob → value, with all knobs. `store.json` has what the stages were given."""
    import tomllib

    from commitlog.config import Config
    from commitlog.config_file import load_config
    from commitlog.disk.store_directory import StoreDirectory

    if effective is None:
        return load_config(tomllib.loads(text)).to_json()
    facts = StoreDirectory(effective).load()
    values = Config.from_json(facts.config).to_json()
    values["store"]["segment_bytes"] = facts.segment_bytes  # what was chosen when the store was made
    return values


def _different(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    from commitlog.config import Config

    default = Config().to_json()
    found = {
        section: {knob: value for knob, value in knobs.items() if value != default[section][knob]}
        for section, knobs in values.items()
    }
    return {section: knobs for section, knobs in found.items() if knobs}


def _lines(values: dict[str, dict[str, Any]]) -> Iterator[str]:
    from commitlog.text.lines import to_json

    if not values:
        yield "# nothing differs from the default"
    for number, (section, knobs) in enumerate(values.items()):
        yield from ([""] if number else [])
        yield f"[{section}]"
        yield from (f"{knob} = {to_json(value).decode()}" for knob, value in knobs.items())  # TOML writes them as JSON
