"""The archive of classes: made once, found by the next session, never in anybody's way."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from commitlog.disk.file_channel import DISK
from commitlog.spark.launching import class_data
from commitlog.spark.launching.class_data import DRAFT_SECONDS, MAGIC, ROOM_BYTES, archive_path, sharing_options
from commitlog.spark.launching.java import UNUSED_SECONDS, find_java


@pytest.fixture(autouse=True)
def _as_for_a_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable that tests set; locks are let go, as at the end of a process."""
    monkeypatch.delenv(class_data.VARIABLE)
    held = len(class_data._held)
    yield
    while len(class_data._held) > held:
        os.close(class_data._held.pop())


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """An empty cache, something like a Java, something like a Spark."""
    cache, java, spark = (tmp_path / name for name in ("cache", "java", "spark"))
    for directory in (cache, java, spark / "jars"):
        directory.mkdir(parents=True)
    (java / "release").write_text("17")
    (java / "lib" / "server").mkdir(parents=True)
    (java / "lib" / "server" / "classes.jsa").touch()
    (spark / "jars" / "spark-core.jar").write_text("4.2")
    return cache, java, spark


def path_in(options: str) -> Path:
    return Path(options.split("'")[1])


def test_made_by_one_session_and_used_by_the_next(places: tuple[Path, Path, Path]) -> None:
    """A session that starts meanwhile does without an archive.

    So does one that finds a draft that is not whole yet.
    """
    making = sharing_options(*places, "")
    assert making.startswith("-XX:ArchiveClassesAtExit='")
    assert sharing_options(*places, "") == ""
    draft = path_in(making)
    draft.write_bytes(bytes(100))
    assert sharing_options(*places, "") == ""
    draft.write_bytes(MAGIC + bytes(96))
    using = sharing_options(*places, "")
    assert using.startswith("-XX:SharedArchiveFile='")
    assert path_in(using).read_bytes() == MAGIC + bytes(96)
    assert not draft.exists()


def test_none_is_made_where_it_has_no_room(places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each JVM would try it for half a minute, and print at its end that it could not."""
    with monkeypatch.context() as disk:
        disk.setattr(DISK, "space", lambda path: (1 << 40, ROOM_BYTES - 1))
        assert sharing_options(*places, "") == ""
    assert sharing_options(*places, "") != ""


def test_another_java_or_spark_has_an_archive_of_its_own(places: tuple[Path, Path, Path]) -> None:
    """A JVM would ignore the one that is there, and nobody would make a better one."""
    _, java, spark = places
    before = archive_path(*places)
    (spark / "jars" / "spark-core.jar").write_text("4.2.1")
    after = archive_path(*places)
    (java / "release").write_text("17.0.1")
    assert len({before, after, archive_path(*places)}) == 3


def test_what_is_stale_is_removed(places: tuple[Path, Path, Path]) -> None:
    """Old drafts and unused archives are removed.

    These are drafts of an earlier boot, drafts that were never finished, and archives that nobody
    has used for a month.
    """
    cache = places[0]
    stem, now = archive_path(*places).stem, time.time()
    ages = {
        f"{stem}.00000000.7.draft": 0.0,  # whole, but of another boot
        f"{path_in(sharing_options(*places, '')).name}": DRAFT_SECONDS + 1,
        "spark-classes-0.jsa": UNUSED_SECONDS + 1,
        "spark-classes-0.lock": UNUSED_SECONDS + 1,
        "spark-classes-1.jsa": UNUSED_SECONDS - 60,
        "somebody-elses": UNUSED_SECONDS + 1,
    }
    for name, age in ages.items():
        (cache / name).write_bytes(MAGIC if "00000000" in name else b"")
        os.utime(cache / name, (now - age, now - age))
    sharing_options(*places, "")
    assert {path.name for path in cache.iterdir()} == {"spark-classes-1.jsa", "somebody-elses", f"{stem}.lock"}


def test_a_use_counts(places: tuple[Path, Path, Path]) -> None:
    archive = archive_path(*places)
    archive.write_bytes(MAGIC)
    past = time.time() - UNUSED_SECONDS + 60
    os.utime(archive, (past, past))
    sharing_options(*places, "")
    assert archive.stat().st_mtime > past + 60


@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=x"])
def test_what_the_user_says_of_class_data_wins(places: tuple[Path, Path, Path], given: str) -> None:
    assert sharing_options(*places, f"-Dx=y {given}") == ""
    assert list(places[0].iterdir()) == []


@pytest.mark.parametrize(("mode", "used"), [("off", False), ("use", True), ("make", True)])
def test_a_variable_of_the_environment(places: tuple[Path, Path, Path], mode: str, used: bool) -> None:
    known = {class_data.VARIABLE: mode}
    assert bool(sharing_options(*places, "", known)) == (mode == "make")
    archive_path(*places).write_bytes(MAGIC)
    assert bool(sharing_options(*places, "", known)) == used


def test_a_cache_that_cannot_be_used_is_no_error(places: tuple[Path, Path, Path]) -> None:
    _, java, spark = places
    assert sharing_options(Path("/proc/nowhere"), java, spark, "") == ""
    assert sharing_options(places[0], java, spark / "absent", "") == ""


def test_a_java_without_an_archive_of_its_own_makes_none(places: tuple[Path, Path, Path]) -> None:
    """Java 17 would not start, and later ones write nothing. PyPI's are of this kind."""
    cache, java, _ = places
    (java / "lib" / "server" / "classes.jsa").unlink()
    assert sharing_options(*places, "") == ""
    assert list(cache.iterdir()) == []


def test_a_jvm_writes_one_and_takes_it(places: tuple[Path, Path, Path]) -> None:
    """With the machine's Java and Spark's launcher as the program, which has nothing to launch."""
    cache, java, spark = places[0], find_java().runtime, Path(_find_spark_home())
    if not (java / "lib" / "server" / "classes.jsa").exists():
        pytest.skip(f"{java} has no archive of its own, on which others are built")
    if " " in str(spark):
        pytest.skip(f"Java takes no classes from an archive where their path has a space: {spark}")
    program = ["-cp", f"{spark}/jars/*", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "x"]

    def run(options: str, *more: str) -> str:
        words = shlex.split(options)
        done = subprocess.run([java / "bin" / "java", *words, *more, *program], capture_output=True, text=True)
        return done.stdout + done.stderr

    run(sharing_options(cache, java, spark, ""))
    using = sharing_options(cache, java, spark, "")
    said = run(using, "-Xshare:on", "-Xlog:class+load:stdout")
    assert "org.apache.spark.launcher.Main source: shared objects file (top)" in said
