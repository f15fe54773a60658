"""How the commands of one command line are found, and what their help looks like.

A command's docstring is its help: the first sentence is also its line in `commitlog --help`, and an
indented block is printed as it stands, for examples.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from difflib import get_close_matches
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from commitlog.cli.arguments import STORE_VARIABLE
from commitlog.cli.completion import WORDS


class Command(TyperCommand):
    """A command whose help keeps examples as they are, and whose STORE may come from a variable."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Writes the docstring: paragraphs are wrapped, indented blocks are not."""
        with formatter.indentation():
            for paragraph in self._docstring().split("\n\n"):
                formatter.write_paragraph()
                if paragraph.startswith(("    ", "commitlog ")):  # where there is nothing else, cleandoc moves it
                    formatter.write("".join(f"      {line.strip()}\n" for line in paragraph.splitlines()))
                else:
                    formatter.write_text(paragraph)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of the docstring, whole."""
        words = " ".join(self._docstring().partition("\n\n")[0].split())
        sentence, dot, _ = words.partition(". ")
        return sentence + dot.strip() if dot else words

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line, as manuals write them: STORE, [NAME], [FILE]..."""
        pieces = [self.options_metavar or ""]
        for param in self.params:
            if param.param_type_name == "argument":
                name = str(param.metavar or param.name).upper()
                pieces.append((name if param.required else f"[{name}]") + ("..." if param.nargs == -1 else ""))
        return pieces

    def _docstring(self) -> str:
        """The function's own docstring: Typer has changed the indentation of its copy."""
        return cleandoc((self.callback and self.callback.__doc__) or "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the arguments.

        If a command takes STORE and further arguments, and the variable COMMITLOG_STORE is set, the
        variable gives STORE. The first word of the command line is then the argument behind STORE,
        even if it looks like a store.
        """
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        if len(arguments) > 1 and arguments[0].envvar == STORE_VARIABLE and (store := os.environ.get(STORE_VARIABLE)):
            args = [store, *args]
        ctx.meta[WORDS] = list(args)
        ctx.allow_extra_args = True  # refused here, with a hint
        rest: list[str] = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            by_option = any("--topic" in param.opts for param in self.params) and "--topic" not in ctx.meta[WORDS]
            kind = "argument" if len(rest) == 1 else "arguments"
            ctx.fail(f"unexpected {kind}: {' '.join(rest)}{'; name a topic by --topic' if by_option else ''}")
        return rest


class LazyCommands(TyperGroup):
    """Finds a command in `groups`, and imports its module only then.

    `groups` has a heading of the help → name of a command → its module in this package.
    """

    groups: Mapping[str, Mapping[str, str]] = {}

    @property
    def _modules(self) -> dict[str, str]:
        return {name: module for group in self.groups.values() for name, module in group.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the help."""
        return list(self._modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        module_name = self._modules.get(cmd_name)
        if module_name is None:
            return None
        module = importlib.import_module(f"{__package__}.{module_name}")
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(cmd_name, cls=Command)(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes a section for each group, and the first sentence of each command, not cut off."""
        width = max(map(len, self._modules))
        for heading, names in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), self.get_command(ctx, name).get_short_help_str()) for name in names]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command that the arguments begin with; an error names one that is like it."""
        near = [] if args[0] in self._modules else get_close_matches(args[0], self._modules)
        if near and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}; did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. An error about a value begins without pydantic's first words.

        A Ctrl-C gives the exit code that a shell gives it; older versions of typer exit with 1.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
