"""`scripts/bench`: runs parts, prints tables, writes JSON and pictures."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

from scripts.benchmarks import java_servers, machine, markdown, report
from scripts.benchmarks.harness import Bench, Part, say
from scripts.benchmarks.settings import AGAINST, QUICK_REPEATS, QUICK_SCALE, REPEATS, Settings

PARTS = (
    "append",
    "pipeline",
    "durable",
    "scale",
    "recover",
    "dispatch",
    "stages",
    "planning",
    "read",
    "spark",
    "serve",
    "replicate",
)
ROOT = Path(__file__).parents[2]
LEAST_FREE_BYTES = 8 << 30
ANY_PART = [*PARTS, "all"]


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures this log beside what people would use instead: interleaved, in one run, as ratios to a floor.",
    )
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}, or all (default)", default=[])
    parser.add_argument(
        "--quick", action="store_true", help="check in a minute that everything works; its numbers mean nothing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw a PNG a part there")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="fill the marked places there, as BENCHMARKS.md has"
    )
    parser.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="take that JSON file, measure nothing"
    )
    parser.add_argument("--against", metavar="LIST", default="", help=f"further contestants: {','.join(AGAINST)}")
    parser.add_argument("--repeats", type=int, help=f"rounds that count (default {REPEATS}, quick {QUICK_REPEATS})")
    parser.add_argument("--scale", type=float, help=f"work of a turn (default 1, quick {QUICK_SCALE})")
    parser.add_argument(
        "--directory", type=Path, help="where files are written: choose the disk (default: the temporary one)"
    )
    parser.add_argument("--install", action="store_true", help="first fetch the contestants: by pip and Maven")
    found = parser.parse_args(words)
    found.against = frozenset(filter(None, found.against.split(",")))
    for name in found.part:
        if name not in ANY_PART:
            parser.error(f"no part {name}; there are {', '.join(ANY_PART)}")
    if unknown := found.against - set(AGAINST):
        parser.error(f"--against {', '.join(sorted(unknown))}: there are {', '.join(AGAINST)}")
    if found.repeats is not None and found.repeats < 1:
        parser.error("--repeats must be 1 or more")
    if found.scale is not None and not (0 < found.scale < math.inf):
        parser.error("--scale must be a number above 0")
    if found.markdown and not found.earlier and (found.quick or set(parts_of(found)) != set(PARTS)):
        parser.error("--markdown wants a full run of all parts; or --from FILE")
    return found


def parts_of(given: argparse.Namespace) -> list[str]:
    """The parts to run, in the order of PARTS."""
    return [part for part in PARTS if not given.part or part in given.part or "all" in given.part]


def settings_of(given: argparse.Namespace) -> Settings:
    return Settings(
        directory=(given.directory or Path(tempfile.gettempdir())).absolute(),
        quick=given.quick,
        scale=given.scale or (QUICK_SCALE if given.quick else 1.0),
        repeats=given.repeats or (QUICK_REPEATS if given.quick else REPEATS),
        against=given.against,
    )


def install() -> None:
    """Installs the contestants: Python packages here, jars into Maven's own store."""
    say("installing the packages of the dependency group bench")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--group", f"{ROOT / 'pyproject.toml'}:bench"], check=True)
    if not shutil.which("mvn"):
        say("the jars of Kafka and RocketMQ come with Maven, which is not here; on Debian or Ubuntu: apt install maven")
        return
    for pom in java_servers.POMS:
        say(f"fetching jars: {pom.parent.name}, {pom.stem}")
        java_servers.jars(pom, fetch=True)


def main(words: list[str]) -> int:
    """Returns the exit code: 1 where a contestant failed."""
    given = arguments(words)
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        sys.exit("--plot needs matplotlib: pip install matplotlib")
    check_places(given)
    result = read(given.earlier) if given.earlier else measure(given)
    if given.markdown and result["quick"]:
        sys.exit(f"--markdown: {given.earlier} is of a quick run, whose numbers mean nothing")
    report.show_end(result)
    if given.json:
        report.write_json(result, given.json)
    if given.plot:
        from scripts.benchmarks import plot

        for path in plot.draw(result, given.plot):
            print(f"drew {path}")
    if given.markdown:
        try:
            markdown.write(result, given.markdown)
        except ValueError as error:
            sys.exit(f"--markdown: {error}")
    return 1 if any(part["failed"] for part in result["parts"].values()) else 0


def check_places(given: argparse.Namespace) -> None:
    """Ends with a message where an output can't be written: before the work, not after it."""
    for option, file in (("--json", given.json), ("--markdown", given.markdown)):
        if file is not None:
            if file.is_dir():
                sys.exit(f"{option} {file}: it is a directory")
            _check_directory(f"{option} {file}", file.absolute().parent)
    for option, directory in (("--plot", given.plot), ("--directory", given.directory)):
        if directory is not None:
            _check_directory(f"{option} {directory}", directory, make=True)


def _check_directory(asked: str, directory: Path, make: bool = False) -> None:
    try:
        if make:
            directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        sys.exit(f"{asked}: {error.strerror}")


def read(path: Path) -> dict[str, Any]:
    """An earlier run, from its JSON file."""
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        sys.exit(f"--from {path}: {error}")
    if not isinstance(found, dict) or found.get("format") != report.FORMAT:
        sys.exit(f"--from {path}: not a report of this version; --json writes one")
    return found


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Runs the parts and shows each comparison when it is complete."""
    settings = settings_of(given)
    if given.install:
        install()
    if settings.scale >= 1 and shutil.disk_usage(settings.directory).free < LEAST_FREE_BYTES:
        sys.exit(
            f"{settings.directory}: a full run wants {LEAST_FREE_BYTES >> 30} GiB free; choose another --directory"
        )
    here = machine.describe(settings.directory)
    report.show_machine(here, settings)
    return report.to_json(settings, here, [run_part(name, settings) for name in parts_of(given)])


def run_part(name: str, settings: Settings) -> Part:
    module = importlib.import_module(f"scripts.benchmarks.{name}")
    bench = Bench(name, settings, report.show_group)
    with bench.clock():
        module.run(bench)
    return bench.part


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        say("interrupted; nothing is left behind")
        sys.exit(130)
