"""`commitlog bundle STORE [FILE]`: packs the facts that a helper needs, without any message.

The parts come from files, or from commands in processes of their own. So a part that fails, hangs
or crashes, because the store is damaged, leaves the others alone.
"""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoreArgument, print_lines
from commitlog.errors import CommitLogError, StoreNotFound
from commitlog.system.clock import SYSTEM_CLOCK
from commitlog.text.lines import printable

if TYPE_CHECKING:
    from commitlog.disk.store_directory import StoreDirectory

_COMMANDS = ("stat", "topics", "readers", "health", "doctor")
_PATIENCE_SECONDS = 120
_FILE_BYTES_MAX = 64 << 20
_LOG = re.compile(r"[a-z]+\.log(\.\d+)?")
_NOTE = re.compile(r"(corrupt-\d{20}|torn-\d{20}-[0-9a-f]{8}|cut|rebuild)\.json")
"""The notes of a quarantine. Other files in it have messages in them, whatever their names."""

_README = """\
What `commitlog bundle` has packed of a store, for somebody who helps.

    {versions}
    {store}
    {time}

stat.json, topics.json, readers.json, health.json, doctor.json
                     what these commands print with --json
*.stderr             what such a command said besides, or why it failed
store.json           with the configuration of the last start
readers/, lanes/     positions of readers and lanes, notes of damaged places, what was trimmed
logs/                what the stages said
files.txt            all files of the store and of its shared memory: mode, owner, size, time, name

Not in it: values, keys, tags, headers, rows. No file that has messages in it is packed.

In it, so look before you send it: names of topics, of their columns and of readers; paths, which
often have the name of a user or a project in them, and may have that of a host; numbers of users
and processes; versions of programs; times.
"""


class PartFailed(Exception):
    """A command has printed no result. The text is its last line on standard error."""


Part = tuple[str, Callable[[], bytes]]
"""The name of a file in the bundle, and the function that makes its content."""


def bundle(
    store: StoreArgument,
    file: Annotated[
        Path | None,
        typer.Argument(help="Where to write it; by default a file in this directory.", metavar="FILE.tar.gz"),
    ] = None,
) -> None:
    """Pack logs and facts of STORE into one file, to ask for help.

        commitlog bundle data/events
        commitlog bundle data/events help.tar.gz

    No value, key, tag or header is in it. STORE may run, hang, be killed or damaged.
    """
    from commitlog.disk.file_channel import DISK
    from commitlog.disk.store_directory import StoreDirectory

    directory = StoreDirectory(store)
    _check(directory)
    now = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ms() / 1000, UTC)
    name = f"commitlog-bundle-{now:%Y%m%dT%H%M%SZ}"
    target = Path(f"{name}.tar.gz") if file is None else file / f"{name}.tar.gz" if file.is_dir() else file
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"{target.parent} is no directory that you may write to; give another FILE")
    if target.resolve().is_relative_to(directory.path.resolve()):
        raise typer.BadParameter(f"{target} is within the store; give another FILE")
    if target.exists() and not target.name.endswith(".tar.gz"):
        raise typer.BadParameter(f"{target} is there already, and no older bundle by its name; give another FILE")
    data = _packed(name, directory, now)
    try:
        DISK.replace_file(target, data)  # a new file of mode 0600, there as a whole or not at all
    except OSError as error:
        raise typer.BadParameter(f"{target}: {error.strerror}; give another FILE") from error
    print_lines(
        [
            f"{target.absolute()}: {len(data):,} bytes, readable by you alone",
            "no values, keys, tags or headers are in it; names of topics, columns and readers, and paths are",
            f"before you send it: `tar tzf {target}`, and read README.txt, files.txt and logs/ in it",
        ]
    )


def _check(directory: StoreDirectory) -> None:
    """Raises StoreNotFound and StoreRefused. A store that is damaged will do."""
    directory.check_path()
    try:
        directory.load()
    except StoreNotFound:
        if not directory.lanes_directory.is_dir():
            raise
    except CommitLogError:
        return  # each part says it


def _packed(name: str, directory: StoreDirectory, now: datetime) -> bytes:
    """Makes the bundle. The error of a part that fails takes its place, and is printed too."""
    buffer = io.BytesIO()
    with tarfile.open(None, "w:gz", buffer) as archive:
        for part, content in _parts(directory, now):
            try:
                data = content()
            except (CommitLogError, PartFailed, OSError, subprocess.TimeoutExpired) as error:
                data = f"{type(error).__name__}: {error}\n".encode(errors="backslashreplace")
                print_lines([f"commitlog: {printable(part)} has only an error: {printable(str(error))}"], err=True)
            facts = tarfile.TarInfo(f"{name}/{part}")
            facts.size, facts.mode, facts.mtime = len(data), 0o600, int(now.timestamp())
            archive.addfile(facts, io.BytesIO(data))
    return buffer.getvalue()


def _parts(directory: StoreDirectory, now: datetime) -> Iterator[Part]:
    yield "README.txt", lambda: _readme(directory, now)
    for command in _COMMANDS:
        yield from _said(command, directory.path)
    yield "files.txt", lambda: _listing(directory)
    for path in _files(directory):
        yield str(path.relative_to(directory.path)), partial(directory.channel.read_file, path, _FILE_BYTES_MAX)


def _readme(directory: StoreDirectory, now: datetime) -> bytes:
    import platform

    import commitlog
    from commitlog.native import description

    versions = (
        f"commitlog {commitlog.__version__}, core: {description}, {platform.python_implementation()} "
        f"{platform.python_version()}, {platform.system()} {platform.release()}"
    )
    return _README.format(versions=versions, store=printable(str(directory.path)), time=now.isoformat()).encode()


def _said(command: str, store: Path) -> Iterator[Part]:
    """Returns a command's JSON output, and its standard error as a second part."""
    done: list[subprocess.CompletedProcess[bytes]] = []

    def output() -> bytes:
        words = [sys.executable, "-P", "-m", "commitlog.cli", command, str(store), "--json"]
        done.append(subprocess.run(words, capture_output=True, timeout=_PATIENCE_SECONDS, check=False))
        if not done[0].stdout:
            said = done[0].stderr.decode(errors="backslashreplace").splitlines()
            raise PartFailed(said[-1] if said else f"{command} ended with exit code {done[0].returncode}")
        return done[0].stdout

    yield f"{command}.json", output
    if done and done[0].stderr:
        yield f"{command}.stderr", lambda: done[0].stderr


def _files(directory: StoreDirectory) -> Iterator[Path]:
    """The files of a store that have no messages in them."""
    channel = directory.channel
    for path in (directory.file, directory.incomplete_backup_file, directory.trim_file):
        if path.is_file():
            yield path
    yield from (
        directory.logs_directory / name for name in channel.list(directory.logs_directory) if _LOG.fullmatch(name)
    )
    readers = channel.list(directory.readers_directory)
    yield from (directory.readers_directory / name for name in readers if name.endswith(".json"))
    for number in directory.lane_numbers():
        lane = directory.lane_directory(number)
        files = lane.positions_file, lane.checkpoint_file, lane.trimmed_file, lane.ends_file
        yield from filter(Path.is_file, files)
        yield from (lane.quarantine / name for name in channel.list(lane.quarantine) if _NOTE.fullmatch(name))


def _listing(directory: StoreDirectory) -> bytes:
    """All names in the store, and in its shared memory where `store.json` can be read."""
    lines = list(_listed(directory.path))
    try:
        pool = directory.load().pool
    except CommitLogError as error:
        lines.append(f"shared memory is not listed: {error}")
    else:
        lines += _listed(Path(pool.directory)) if pool else ["the store has no shared memory"]
    return "".join(f"{printable(line)}\n" for line in lines).encode()


def _listed(top: Path) -> Iterator[str]:
    """A line for each directory and file below `top`. A link is not followed."""
    for place, folders, names in os.walk(top):
        folders.sort()
        for path in (Path(place), *(Path(place, name) for name in sorted(names))):
            try:
                facts = path.lstat()
            except OSError as error:  # it has just gone
                yield f"{path}: {error.strerror}"
                continue
            time = datetime.fromtimestamp(facts.st_mtime, UTC).isoformat(timespec="milliseconds")
            size = f"{facts.st_size:>13,} {facts.st_blocks * 512:>13,}"
            yield f"{stat.filemode(facts.st_mode)} {facts.st_uid:>5} {size} {time} {path}"
