"""Words that publish are stored and loaded by name, on each kind of machine in its own way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from operator import getitem, setitem
from pathlib import Path

import pytest

from commitlog.native import core
from commitlog.shm.layout import DECLARED
from commitlog.shm.memory_order import KEEPS_ORDER, confirm, observe, publish
from tests.floors import ROOT
from tests.weak_machine import WEAK

PUBLISHING = {(block, name) for block, words in DECLARED.items() for name, word in words.items() if word.publishes}


def mentions_one(node: ast.AST) -> bool:
    """Whether an expression names a word that publishes (`Lane.WROTE`), and not its value."""
    if isinstance(node, ast.Call):
        return False
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id, node.attr) in PUBLISHING
    return any(map(mentions_one, ast.iter_child_nodes(node)))


def is_column(node: ast.AST) -> bool:
    """Whether it is a column of the table of all lanes: `table[:, Lane.WROTE]`."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Tuple)
        and isinstance(node.slice.elts[0], ast.Slice)
    )


def name_of(node: ast.AST) -> str | None:
    """The name of a variable or an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each name that something is assigned to, and what that is; pairs of two tuples one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                values = [node.value] * 99
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    values = node.value.elts
                for part, value in zip(
                    target.elts if isinstance(target, ast.Tuple) else [target], values, strict=False
                ):
                    if name := name_of(part):
                        yield name, value


def wrong_accesses(source: str) -> list[str]:
    """The lines that access a word that publishes as a plain item, or one item of a column."""
    tree = ast.parse(source)
    names = list(assigned(tree))
    columns = {name for name, value in names if is_column(value) and mentions_one(value)}
    # an index, as in `at = row_at + Lane.WROTE`: it is no call, no item, and no test
    indexes = {
        name for name, value in names if isinstance(value, ast.Attribute | ast.BinOp) and mentions_one(value)
    } - columns
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript):
            continue
        if is_column(node):
            is_wrong = not isinstance(node.ctx, ast.Load) and mentions_one(node.slice)
        else:
            is_index = mentions_one(node.slice) or name_of(node.slice) in indexes
            is_wrong = is_index or name_of(node.value) in columns
        if is_wrong:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="the rules are held in a checkout")
def test_words_that_publish_are_accessed_by_name_only() -> None:
    """Everywhere but in tests, which hold the words of stores that nobody else has open."""
    rooms = [path for room in ("commitlog", "shm", "stages", "scripts") for path in (ROOT / room).rglob("*.py")]
    assert len(rooms) > 400
    found = {str(path.relative_to(ROOT)): wrong_accesses(path.read_text()) for path in rooms}
    assert not {path: lines for path, lines in found.items() if lines}, "use publish, observe or confirm"


@pytest.mark.parametrize(
    "line",
    [
        "row[Lane.WROTE] = 1",
        "row[Lane.WROTE] += 1",
        "a = b = row[Lane.FLUSHED]",
        "row[Lane.ENTRIES_AT + place]",
        "self._wrote_at = at + Lane.WROTE\nwords[self._wrote_at] = end",
        "table[:, Lane.FLUSHED] = 0",
        "self._wrote, self._flushed = table[:, Lane.WROTE], table[:, Lane.FLUSHED]\nself._flushed[lane]",
        "table[lane, Lane.WROTE]",
    ],
)
def test_a_plain_access_is_found(line: str) -> None:
    assert wrong_accesses(line)


@pytest.mark.parametrize(
    "line",
    ["row[Lane.MESSAGES] += 1", "observe(row, Lane.WROTE)", "dirty = table[:, Lane.WROTE] > table[:, Lane.COMMITTED]"],
)
def test_other_accesses_are_not(line: str) -> None:
    assert not wrong_accesses(line)


PROGRAM = f"""{WEAK}
import sys
from pathlib import Path
from commitlog import native
from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Lane
from commitlog.shm.memory_order import confirm, observe, publish
directory = Path(sys.argv[1])
with_words = ControlRegion.create(directory, "00" * 16, directory)
row = with_words.row(3)
publish(row, Lane.WROTE, 2**40)
print(observe(row, Lane.WROTE), confirm(row, Lane.WROTE), row[Lane.WROTE], native.description)
"""


def run(program: str, *arguments: object, wish: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    return subprocess.run(command, env={"COMMITLOG_NATIVE": wish}, capture_output=True, text=True)


@pytest.mark.skipif(core is None, reason="there is no native core, or COMMITLOG_NATIVE=off")
@pytest.mark.parametrize("wish", ["on", "off"])
def test_the_native_core_keeps_the_order_of_a_weak_machine(wish: str, tmp_path: Path) -> None:
    """Also where Python runs the loops."""
    done = run(PROGRAM, tmp_path, wish=wish)
    assert done.stdout.startswith(f"{2**40} {2**40} {2**40} "), done.stderr


def test_a_weak_machine_without_the_core_has_a_named_error(tmp_path: Path) -> None:
    no_core = "sys.modules['commitlog.native._core'] = None\nfrom commitlog import native"
    done = run(PROGRAM.replace("from commitlog import native", no_core), tmp_path, wish="auto")
    assert "NativeCoreMissing: a running store on weak needs the native core, and there is none: " in done.stderr


def test_the_doctor_says_that_a_weak_machine_lacks_the_core() -> None:
    program = "from commitlog.doctor.machine import kernel\nprint(*kernel(None))"
    no_core = f"{WEAK}import sys\nsys.modules['commitlog.native._core'] = None\n"
    assert "a running store on weak needs the native core" in run(no_core + program, wish="auto").stdout
    assert "use such a machine" not in run(program, wish="auto").stdout


@pytest.mark.skipif(not KEEPS_ORDER, reason="of this machine")
def test_on_x86_64_an_access_is_the_plain_item() -> None:
    assert [publish, observe, confirm] == [setitem, getitem, getitem]
