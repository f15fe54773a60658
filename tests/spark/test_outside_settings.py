"""Spark's settings outside the program, and the memory of its JVM: read before any Java runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.memory_limit import memory_limit
from commitlog.spark.launching.jvm_memory import driver_memory
from commitlog.spark.launching.outside_settings import outside_settings


def test_arguments(tmp_path: Path) -> None:
    line = "--master local[3] --name='two words' --conf a.b=c=d -c e=f --verbose --driver-memory 2g prog --master no"
    assert outside_settings(tmp_path, {"PYSPARK_SUBMIT_ARGS": line}) == {
        "spark.master": "local[3]",
        "spark.app.name": "two words",
        "a.b": "c=d",
        "e": "f",
        "spark.driver.memory": "2g",
    }


def test_a_file_of_defaults(tmp_path: Path) -> None:
    """Its lines have a space, `=` or `:`. Comments and empty lines do not count."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# spark.a 0\n! spark.a 0\n\nspark.a   1 2 \nspark.b=3\nspark.c : 4\nspark.d 5,\\\n  6\nspark.e\n"
    )
    wanted = {"spark.a": "1 2", "spark.b": "3", "spark.c": "4", "spark.d": "5,6", "spark.e": ""}
    assert outside_settings(tmp_path, {}) == wanted
    assert outside_settings(tmp_path / "elsewhere", {"SPARK_CONF_DIR": str(tmp_path / "conf")}) == wanted


def test_arguments_win_over_files_and_files_over_variables(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master local[1]\nspark.driver.memory 1g\n")
    (tmp_path / "mine.conf").write_text("spark.master local[2]\n")
    mine = f"--properties-file {tmp_path}/mine.conf"

    def given(line: str) -> dict[str, str]:
        return outside_settings(tmp_path, {"MASTER": "yarn", "SPARK_DRIVER_MEMORY": "3g", "PYSPARK_SUBMIT_ARGS": line})

    assert given("") == {"spark.master": "local[1]", "spark.driver.memory": "1g"}
    assert given(mine) == {"spark.master": "local[2]", "spark.driver.memory": "3g"}
    assert given(f"--load-spark-defaults {mine}") == {"spark.master": "local[2]", "spark.driver.memory": "1g"}
    assert given("--master local[4]") == {"spark.master": "local[4]", "spark.driver.memory": "1g"}


@pytest.mark.parametrize(
    ("machine_mib", "wanted"), [(1024, "512m"), (2048, "512m"), (3000, "750m"), (4095, "1023m"), (4096, None)]
)
def test_a_small_machine_gives_a_quarter_of_its_memory(machine_mib: int, wanted: str | None) -> None:
    assert driver_memory(machine_mib << 20) == wanted


def test_the_memory_of_a_container(tmp_path: Path) -> None:
    """The smallest limit on the way up counts; `max` is none."""
    groups, hierarchy = tmp_path / "cgroup", tmp_path / "fs"
    (hierarchy / "a" / "b").mkdir(parents=True)
    groups.write_text("0::/a/b\n")
    (hierarchy / "a" / "b" / "memory.max").write_text("max\n")
    assert memory_limit(groups, hierarchy, 9 << 30) == 9 << 30
    (hierarchy / "a" / "memory.max").write_text(f"{2 << 30}\n")
    assert memory_limit(groups, hierarchy, 9 << 30) == 2 << 30
    assert memory_limit(tmp_path / "absent", tmp_path / "absent", 9 << 30) == 9 << 30
