"""scripts/matrix: which cells it tries. CI tries them each night; here nothing is installed."""

from __future__ import annotations

import itertools
import subprocess
import tomllib

import pytest

from scripts.trying_matrix import FACTORS, ROOT, TESTS, all_cells, chosen_cells, pairs

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_two_values_meet_in_a_cell() -> None:
    """In an eighth of all cells."""
    cells = chosen_cells([])
    assert len(cells) == len(set(cells)) <= len(all_cells()) / 8
    met = set().union(*map(pairs, cells))
    for (one, values), (other, others) in itertools.combinations(FACTORS.items(), 2):
        assert all((f"{one} {x}", f"{other} {y}") in met for x in values for y in others)


def test_each_supported_python_is_tried() -> None:
    versions = {name.rpartition(" :: ")[2] for name in PROJECT["classifiers"] if ":: Python :: 3." in name}
    assert versions == set(FACTORS["python"])


def test_words_choose_among_all_cells() -> None:
    (cell,) = chosen_cells(["py3.12-spark4.2-java17-native-oldest"])
    assert str(cell) not in map(str, chosen_cells([]))
    assert len(chosen_cells(["py3.14", "java25"])) == 8


@pytest.mark.parametrize(
    ("word", "code", "said"), [("java25", 0, "-java25-"), ("java9", 1, "no cell's name has java9")]
)
def test_a_list_of_cells(word: str, code: int, said: str) -> None:
    command = [str(ROOT / "scripts" / "matrix"), "--list", word]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_tests_of_a_cell_are_there() -> None:
    for test in TESTS:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        assert not name or f"def {name}(" in (ROOT / path).read_text()
