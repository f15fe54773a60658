"""Finds the words that a shell offers after an option: names in the store, by file names alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import typer

from commitlog.cli.arguments import STORE_VARIABLE

WORDS = "commitlog.words"
"""The key in the context under which a command keeps its words."""


def topics_of(ctx: typer.Context) -> list[str]:
    """The topics of the STORE on the command line; none where it can't be looked at."""
    store = _store(ctx)
    return _names(chain.from_iterable(map(store.glob, ("lanes/*/consumequeue/*", "consumequeue/*", "topics/*"))))


def readers_of(ctx: typer.Context) -> list[str]:
    """The named readers of the STORE on the command line."""
    return _names(path.with_suffix("") for path in _store(ctx).glob("readers/*.json"))


def _store(ctx: typer.Context) -> Path:
    """The first word that is a directory: a line without its last value is not parsed."""
    words = [*ctx.meta.get(WORDS, ()), os.environ.get(STORE_VARIABLE, "")]
    return Path(next((word for word in words if word and os.path.isdir(word)), os.devnull))


def _names(paths: Iterable[Path]) -> list[str]:
    try:
        return sorted({path.name for path in paths})
    except OSError:  # it may not be read; a completion has no place for an error
        return []
