"""The table of all commands of `commitlog`. A command's module is imported only when it runs.

A command is a plain function of the same name in `commitlog/cli/<module>.py`, with typer's
annotations. To add one, write the function and a line in its group in `GROUPS`. Modules import what
is heavy (pyspark, rich, matplotlib) inside their functions, so that `commitlog --help` answers at
once.
"""

from __future__ import annotations

import errno
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import commitlog
from commitlog.cli.arguments import print_lines
from commitlog.cli.commands import LazyCommands
from commitlog.cli.output import STANDARD_OUTPUT, discard_output
from commitlog.errors import (
    NOT_A_FILE,
    BadStart,
    CommitLogError,
    IllegalArgument,
    IllegalTopic,
    NotEnoughMemory,
    NotEnoughThreads,
    OptionError,
    SchemaError,
    is_refusal,
    read_error,
    refusal,
)
from commitlog.text.lines import printable

_WRONG_VALUES = (IllegalArgument, BadStart, IllegalTopic, OptionError, SchemaError)
"""Errors for a wrong value of an option or argument. Their subclasses have other causes."""

GROUPS: dict[str, dict[str, str]] = {
    "Try": {"demo": "demo"},
    "Run": {
        "run": "run",
        "stop": "stop",
        "config": "config",
        "systemd": "systemd",
        "destroy": "destroy",
        "ingest": "ingest",
    },
    "Write and read": {"produce": "produce", "cat": "cat"},
    "Look": {
        "health": "health",
        "stat": "stat",
        "top": "top",
        "ui": "ui",
        "metrics": "metrics",
        "topics": "topics",
        "readers": "readers",
        "replicas": "replicas",
        "logs": "logs",
        "doctor": "doctor",
        "bundle": "bundle",
        "version": "version",
    },
    "Serve other machines": {"serve": "serve", "token": "token", "forward": "forward"},
    "Keep a copy elsewhere": {"replica": "replica", "promote": "promote", "rejoin": "rejoin"},
    "Keep and repair": {"backup": "backup", "trim": "trim", "verify": "inspect", "dump": "inspect"},
    "Measure": {"profile": "profile"},
}
"""Heading of `--help` → name of a command → its module in this package."""
COMMANDS: dict[str, str] = {name: module for group in GROUPS.values() for name, module in group.items()}
LazyCommands.groups = GROUPS


def _print_version(wanted: bool) -> None:
    if wanted:
        from commitlog.native import description

        typer.echo(f"commitlog {commitlog.__version__}, core: {description}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: quick, and the same with and without rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and the core, and exit."
        ),
    ] = False,
) -> None:
    """A commit log fed through shared memory: local processes append, Spark reads.

    Where a command takes a STORE, COMMITLOG_STORE may name it. `commitlog COMMAND --help` has
    examples.
    """


def _line(message: Exception | str) -> str:
    return printable(" ".join(line.strip() for line in str(message).splitlines()))


def _show_warning(message: Warning | str, category: type[Warning], *_place: object, **_more: object) -> None:
    """A warning as one line, like an error.

    It does not show the warning's place in the code, which helps no user of a command.
    """
    print_lines([f"commitlog: {_line(message)} [{category.__name__}]"], err=True)


def run_command() -> None:
    """Runs the command of the command line.

    An error of ours, of a file that may not be read, of the output, or of a system that refuses
    space, descriptors or memory is printed as one line on stderr. The exit code is 2 where a value
    of the command line is wrong, as typer has it, otherwise 1. A bug keeps its traceback.
    """
    warnings.showwarning = _show_warning
    try:
        try:
            _run_command()
        finally:
            sys.stdout.flush()  # here it can still be an error
    except OSError as error:
        if error.filename != STANDARD_OUTPUT:
            raise
        discard_output()  # what is buffered would fail again at the exit
        if isinstance(error, BrokenPipeError):  # `| head` has seen enough
            sys.exit(1)
        way_out = "it is closed: open it" if error.errno == errno.EBADF else "make room"
        _give_up(error, f"{STANDARD_OUTPUT}: {error.strerror}; {way_out}, or send it elsewhere")


def _run_command() -> None:
    """Runs the command, and says what is wrong before the output is flushed: that may fail, too."""
    try:
        app()
    except CommitLogError as error:
        _give_up(error)
    except PermissionError as error:  # the store belongs to somebody else
        _give_up(error, f"{error.filename}: {error.strerror}; check its owner and permissions")
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:
            raise
        if error.errno == errno.ENAMETOOLONG:
            _give_up(error, f"{error.filename}: {error.strerror}; give a shorter one")
        if is_refusal(error):
            _give_up(refusal(error, Path(sys.argv[0]), "running the command"))
        if error.errno not in NOT_A_FILE or error.filename is None:
            raise
        _give_up(read_error(error, error.filename))  # damage of the store
    except MemoryError as error:
        _give_up(error, NotEnoughMemory.hint)
    except RuntimeError as error:
        if str(error) != "can't start new thread":  # Python has no error of its own for it
            raise
        _give_up(NotEnoughThreads(f"the system gives no more threads; {NotEnoughThreads.hint}"))


def _give_up(error: Exception, message: str = "") -> None:
    print_lines([f"commitlog: {_line(message or error)} [{type(error).__name__}]"], err=True)
    sys.exit(2 if type(error) in _WRONG_VALUES else 1)
