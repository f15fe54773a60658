"""What `commitlog` can do: one table of commands, each imported only when it is asked for.

A command is a plain function of the same name in `commitlog/cli/<module>.py`, with typer's
annotations. To add one, write the function and a line in `COMMANDS`. Modules import what is heavy
(pyspark, rich, matplotlib) inside their functions, so that `commitlog --help` answers at once.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import commitlog
from commitlog.errors import CommitLogError
from commitlog.lines import printable

COMMANDS: dict[str, str] = {
    "ingest": "ingest",
    "run": "run",
    "produce": "produce",
    "cat": "cat",
    "stat": "stat",
    "health": "health",
    "topics": "topics",
    "readers": "readers",
    "trim": "trim",
    "top": "top",
    "ui": "ui",
    "metrics": "metrics",
    "dump": "inspect",
    "verify": "inspect",
    "backup": "backup",
    "profile": "profile",
    "config": "config",
    "destroy": "destroy",
}
"""Name of a command → its module in this package, in the order that `--help` lists them."""


class LazyCommands(TyperGroup):
    """Finds a command in `COMMANDS` and imports its module only then."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__package__}.{COMMANDS[cmd_name]}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. An error about a value begins without pydantic's first words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def _print_version(wanted: bool) -> None:
    if wanted:
        from commitlog.native import description

        typer.echo(f"commitlog {commitlog.__version__}, core: {description}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyCommands,
    add_completion=False,
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
    """A commit log fed through shared memory: local processes append, Spark reads."""


def _line(message: Exception | str) -> str:
    return printable(" ".join(str(message).split()))


def _show_warning(message: Warning | str, category: type[Warning], *_place: object, **_more: object) -> None:
    """A warning as one line, like an error.

    Its place in the code helps nobody who types a command.
    """
    sys.stderr.write(f"commitlog: {_line(message)} [{category.__name__}]\n")


def run_command() -> None:
    """Does what the command line says.

    An error of ours, or of a file that may not be read, is printed as one line on stderr, and the
    exit code is 1. A bug keeps its traceback.
    """
    warnings.showwarning = _show_warning
    try:
        app()
    except CommitLogError as error:
        _give_up(error)
    except PermissionError as error:  # the store belongs to somebody else
        _give_up(error, f"{error.filename}: {error.strerror}; check its owner and permissions")


def _give_up(error: Exception, message: str = "") -> None:
    sys.stderr.write(f"commitlog: {_line(message or error)} [{type(error).__name__}]\n")
    sys.exit(1)
