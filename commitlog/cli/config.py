"""`commitlog config`: prints a configuration file, with a comment for every knob."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Annotated

import typer


class Name(StrEnum):
    default = "default"
    durable = "durable"
    rocketmq = "rocketmq"


def config(
    name: Annotated[
        Name,
        typer.Argument(
            help="default: every knob; durable: `send` returns when its message is on the disk; rocketmq: its numbers."
        ),
    ] = Name.default,
) -> None:
    """Print a configuration file, for `commitlog run --config` and `Store.open(config=…)`.

    A file may leave out what keeps its default.
    """
    typer.echo(files("commitlog").joinpath("configs", f"{name}.toml").read_text(encoding="utf-8"), nl=False)
