"""README and docs/ say what is true.

Examples run, and commands, knobs, options, errors and links exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.main

from commitlog import Producer, Store, errors
from commitlog.cli.app import COMMANDS, app
from commitlog.client.statistics import RetentionStatistics
from commitlog.config import WHEN_CHANGED, Config
from commitlog.config_file import load_config
from commitlog.planning.option_names import SINK_SPELLING, SPELLING
from commitlog.spark.columns import ALL_COLUMNS
from commitlog.stages.supervising.stage_processes import STOP_ORDER
from tests.programs import BLOCK, DOCS, PATIENT_SECONDS, blocks, examples, outputs, patient, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
HOW_TOS = sorted(DOCS.glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_KNOB = re.compile(rf"(?<![\w./])({'|'.join(field.name for field in dataclasses.fields(Config))})\.([a-z_]+)\b")


def inline(page: Path) -> Iterator[str]:
    """What stands in backticks in the prose and in tables."""
    yield from _CODE.findall(BLOCK.sub("", page.read_text()))


def uses_spark(page: Path) -> bool:
    return "commitlog.spark" in examples(page)[0]


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def run_examples(page: Path, directory: Path) -> None:
    """Runs all of a page's Python that has no file's name as one program, in an empty directory.

    It prints what the page's blocks of `text` show.
    """
    program = directory / "examples.py"
    text, printed = examples(page)
    program.write_text(text)
    run_program(program, printed)


def run_program(program: Path, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, program], cwd=program.parent, capture_output=True, text=True, timeout=PATIENT_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.stdout == printed, done.stderr[-4000:]


@patient
@pytest.mark.parametrize("page", named([page for page in HOW_TOS if examples(page)[0] and not uses_spark(page)]))
def test_examples(page: Path, tmp_path: Path) -> None:
    run_examples(page, tmp_path)


@patient
@pytest.mark.parametrize(("page", "name"), [(page, name) for page in HOW_TOS for name in outputs(page)])
def test_programs(page: Path, name: str, tmp_path: Path) -> None:
    """A program that has a name and shows what it prints."""
    write_files(page, tmp_path)
    run_program(tmp_path / name, outputs(page)[name])


@patient
@pytest.mark.parametrize("page", named([page for page in HOW_TOS if uses_spark(page)]))
def test_examples_with_spark(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    """The examples run in the session of the tests, which `commitlog.spark.session` returns."""
    assert said_in_session(page, tmp_path) == examples(page)[1]


@patient
def test_examples_of_readme(spark: SparkSession, tmp_path: Path) -> None:
    """All of them in order: two print the message that the first one sends.

    At night tests/test_wheel.py runs them with an installed wheel.
    """
    assert said_in_session(ROOT / "README.md", tmp_path).count("one apple") == 2


def said_in_session(page: Path, directory: Path) -> str:
    """What a page's examples print that run in the session of the tests.

    Spark's JVM is in another directory, so paths are absolute here. It keeps a catalog as long as
    its session, so each page has one of its own name.
    """
    program, said = examples(page)[0], io.StringIO()
    program = re.sub(r"(catalog\.|FROM )log\b", rf"\1log_of_{page.stem.replace('-', '_')}", program)
    program = re.sub(r"""(["'])(data/|checkpoint\b)""", rf"\1{directory}/\2", program)  # Python's quotes and SQL's
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that session lacks what a user's has
        names: dict[str, object] = {}
        exec(compile(program, str(page), "exec"), names)
        names.clear()  # Spark keeps functions of foreachBatch, and they keep the names
    return said.getvalue()


def command_lines() -> Iterator[tuple[str, str]]:
    """Page and command: each line of a shell block that runs `commitlog`, alone or in a pipe."""
    for page in PAGES:
        for line in "".join(blocks(page, "sh")).splitlines():
            for part in line.partition("#")[0].split("|"):
                if part.strip().startswith("commitlog "):
                    yield page.name, part.strip()


@pytest.mark.parametrize("line", sorted({line for _, line in command_lines()}))
def test_a_command_line_is_understood(line: str) -> None:
    """Its command, its options and the number of its arguments."""
    words = shlex.split(re.sub(r" [<>&].*", "", line))[1:]
    group = typer.main.get_command(app)
    context = group.make_context("commitlog", words, resilient_parsing=True)
    command = group.get_command(context, words[0])  # type: ignore[attr-defined]
    assert command is not None, f"there is no command {words[0]}"
    command.make_context(words[0], words[1:], parent=context)


def options_by_command() -> Iterator[tuple[str, list[str]]]:
    """Each command, as it is called, with the names of one of its options; help is left out."""
    group = typer.main.get_command(app)
    commands = {name: group.get_command(typer.Context(group), name) for name in COMMANDS}  # type: ignore[attr-defined]
    for name, command in commands.items():
        parts = {f"{name} {part}": below for part, below in getattr(command, "commands", {}).items()} or {name: command}
        for called, part in parts.items():
            for option in part.params:
                if option.param_type_name == "option":
                    yield called, [*option.opts, *option.secondary_opts]


def test_every_option_of_a_command_is_on_a_page_that_names_the_command() -> None:
    texts = [page.read_text() for page in [ROOT / "README.md", *HOW_TOS]]
    options = [*options_by_command()]
    missing = [
        f"{command} {names[0]}"
        for command, names in options
        if not any(
            f"commitlog {command}" in text and re.search(rf"(?<![\w-])({'|'.join(names)})(?![\w-])", text)
            for text in texts
        )
    ]
    assert len(options) > 120
    assert not missing


def test_commands_in_prose_are_there() -> None:
    wrong = {
        f"{page.name}: {code}"
        for page in PAGES
        for code in inline(page)
        if (found := re.match(r"commitlog ([a-z]+)\b", code)) and found[1] not in COMMANDS
    }
    assert not wrong


@pytest.mark.parametrize("page", named(PAGES))
def test_knobs_are_there(page: Path) -> None:
    """A name like `section.knob` is a knob, a method of Store or Producer, or a statistic.

    A TOML block loads.
    """
    others = {
        "store.json",
        "replication.json",
        *(f"producer.{name}" for name in dir(Producer)),
        *(f"store.{name}" for name in dir(Store)),
    }
    others |= {f"retention.{field.name}" for field in dataclasses.fields(RetentionStatistics)}
    for code in inline(page):
        for section, name in _KNOB.findall(code):
            is_knob = hasattr(getattr(Config(), section), name)
            assert is_knob or f"{section}.{name}" in others, f"there is no knob {section}.{name}"
    for text in blocks(page, "toml"):
        load_config(tomllib.loads(text))


def test_what_a_reload_does_is_documented() -> None:
    """Of each section, and of each knob that differs from its section: one row of the table."""
    text = (ROOT / "docs/operate.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (holds .+|needs .+) \|$", text, re.MULTILINE)
    documented = {name: when for names, when in rows for name in re.findall(r"`\[?([\w.]+)\]?`", names)}
    assert documented == WHEN_CHANGED
    assert {name for name in documented if "." not in name} == {field.name for field in dataclasses.fields(Config)}


def test_there_is_much_to_look_at() -> None:
    """Links, knobs, commands and paths: other tests of pages would pass where there are none."""
    codes = [code for page in PAGES for code in inline(page)]
    assert sum(len(_LINK.findall(BLOCK.sub("", page.read_text()))) for page in PAGES) > 100
    assert sum(len(_KNOB.findall(code)) for code in codes) > 70
    assert sum(code.startswith("commitlog ") for code in codes) > 100
    assert (
        sum(re.fullmatch(r"(docs|configs|scripts|tests|commitlog|stages)/.+", code) is not None for code in codes) > 100
    )
    assert len(list(command_lines())) > 40


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)}


@pytest.mark.parametrize("page", named([*PAGES, ROOT / "tests/vectors/README.md"]))
def test_links_lead_somewhere(page: Path) -> None:
    """A link leads to a file of the repository, or to a heading in it.

    This includes `docs/x.md` and `configs/x` in backticks.
    """
    for link in _LINK.findall(BLOCK.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    for code in inline(page):
        if re.fullmatch(r"(docs|configs|scripts|tests|commitlog|stages|shm)/[\w./@-]+", code):
            assert (ROOT / code).exists(), code
        elif re.fullmatch(r"[a-z_]+/[a-z_/]+\.py", code):  # a room's name without the folder that it is in
            assert any((ROOT / folder / code).exists() for folder in ("commitlog", "stages")), code


def test_the_order_of_the_drain() -> None:
    """ARCHITECTURE names the stages in the order in which a stop lets them drain."""
    names = re.search(r"^2\. (.+) drain, in this order", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert names
    assert re.split(", | and ", names[1].lower()) == [*STOP_ORDER]


def test_every_page_is_in_the_index() -> None:
    linked = set(_LINK.findall((ROOT / "docs/README.md").read_text()))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"} <= linked


def test_every_option_and_column_of_spark_is_documented() -> None:
    """Each in backticks in docs/spark.md."""
    there = set(inline(ROOT / "docs/spark.md"))
    assert {*SPELLING.values(), *SINK_SPELLING.values(), *ALL_COLUMNS} <= there


def test_every_variable_of_the_environment_is_in_its_table() -> None:
    """And in the table of README each extra: both are public."""
    sources = [path for room in ("commitlog", "shm", "stages") for path in (ROOT / room).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\bCOMMITLOG_[A-Z_]+\b", path.read_text())}
    rows = re.findall(r"^\| `(COMMITLOG_\w+)` \|", (DOCS / "command-line.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(read - {"COMMITLOG_SESSION_TIMEZONE"})  # which a session tells its own workers
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`'pyspark-commitlog.*?)\|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\[(\w+)\]", row)} == set(extras)


def named_errors() -> set[str]:
    """What stands in the first column of every table whose first column is `error`."""
    pages = "".join(page.read_text() for page in HOW_TOS)
    tables = re.findall(r"^\| error \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", pages, re.MULTILINE)
    return {name for row in "".join(tables).splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_tables_of_errors_have_all_of_them() -> None:
    """Each class of commitlog.errors is in one of the tables, and nothing else is."""
    classes = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert len(classes) > 80
    assert named_errors() == classes


def test_pictures_are_small() -> None:
    """They are in every checkout."""
    assert all(path.stat().st_size < 150_000 for path in (ROOT / "docs/images").iterdir())
