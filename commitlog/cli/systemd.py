"""`commitlog systemd install NAME`: writes the units of `configs/`, for a machine or a user."""

from __future__ import annotations

import os
import pwd
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import ForShell, print_lines
from commitlog.errors import UnitRefused

_UNITS = (
    "commitlog@.service",
    "commitlog-metrics@.service",
    "commitlog-serve@.service",
    "commitlog-forward@.service",
    "commitlog-replica@.service",
    "commitlog-backup@.service",
    "commitlog-backup@.timer",
)
_COMMAND = "/opt/commitlog/bin/commitlog"
"""As the files of `configs/` have it."""
_OF_THE_MACHINE = (
    "User|StateDirectory|StateDirectoryMode|CapabilityBoundingSet|ProtectSystem|ProtectHome|ProtectProc|ProtectClock|"
    "ProtectHostname|ProtectControlGroups|ProtectKernelLogs|ProtectKernelModules|ProtectKernelTunables|PrivateTmp|"
    "PrivateDevices"
)
"""Settings that only the machine's own systemd may carry out."""
_HIDDEN = ("/home", "/root", "/run/user")
"""What `ProtectHome` hides from a unit."""
_WRITTEN = re.compile(r"# Written by `commitlog systemd install`, crc32 ([0-9a-f]{8})\. .*\n")


@dataclass(frozen=True)
class Place:
    """Where units and configurations go, and what the units call the places of stores."""

    units: Path
    configurations: Path
    is_user: bool

    @classmethod
    def of(cls, *, is_user: bool, root: Path) -> Place:
        """That of this user, or that of the machine, whose files are below `root`.

        Raises UnitRefused for a user without a home.
        """
        if not is_user:
            return cls(root / "etc/systemd/system", root / "etc/commitlog", is_user)
        own = Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config")
        return cls(own / "systemd/user", own / "commitlog", is_user)

    def adapted(self, text: str, command: str) -> str:
        """A unit of `configs/` as it runs here."""
        text = text.replace(_COMMAND, command)
        if not self.is_user:
            return text
        text = re.sub(
            rf"^(?:#.*\n)*(?:{_OF_THE_MACHINE})=.*\n", "", text, flags=re.MULTILINE
        )  # with what is said of it
        for old, new in (
            ("/etc/commitlog", "%E/commitlog"),
            ("/var/lib/commitlog", "%h/.local/share/commitlog"),
            ("/var/backups/commitlog", "%h/.local/share/commitlog-backups"),
            ("multi-user.target", "default.target"),
            ("Wants=network-online.target\n", ""),
            ("After=network-online.target", "After="),
        ):
            text = text.replace(old, new)
        return text


def systemd(
    action: Annotated[str, typer.Argument(metavar="install", help="What to do.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the store, as in commitlog@NAME.")],
    user: Annotated[
        bool | None,
        typer.Option("--user/--system", help="For this user, or for the machine; root's default is the machine."),
    ] = None,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="With --system: write below DIR, as for an image of a machine.")
    ] = Path("/"),
    only_print: Annotated[bool, typer.Option("--print", help="Print the files, and write none.")] = False,
) -> None:
    """Write the systemd units for the store NAME, and say what comes next.

        commitlog systemd install events
        commitlog systemd install events --user --print

    Units for the store, its metrics, its server, its backups, a forwarder and a replica. They run
    this very command. Nothing is started. A file that you have edited is refused by name.
    """
    if action != "install":
        raise typer.BadParameter(f"{action!r}: there is only `install`", param_hint="install")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", name):
        raise typer.BadParameter(f"{name!r} is no name: it has letters, digits and _ . : -", param_hint="NAME")
    is_user = os.geteuid() != 0 if user is None else user
    if is_user and root != Path("/"):
        raise typer.BadParameter("--root goes with --system: the units of a user are below the home directory")
    place = Place.of(is_user=is_user, root=root)
    command = _command(must_be_seen=not is_user and root == Path("/"))
    configs = files("commitlog").joinpath("configs")
    units = {place.units / unit: _marked(place.adapted(configs.joinpath(unit).read_text(), command)) for unit in _UNITS}
    own = {
        place.configurations / f"{name}.toml": configs.joinpath("default.toml").read_text(),
        place.configurations / f"{name}.env": configs.joinpath("systemd.env").read_text().replace("NAME", name),
    }
    if only_print:
        typer.echo("\n".join(f"# {file}\n{text}" for file, text in (units | own).items()), nl=False)
        return
    _check(units)
    try:
        said = list(_write(units, own))
        if is_user:
            for directory in ("commitlog", "commitlog-backups"):
                (_home() / ".local/share" / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        way = "check that this user may write there" if is_user else "run it as root, or with --user for yourself"
        raise UnitRefused(f"{error.filename}: {error.strerror}; {way}") from error
    print_lines([*said, "next:", *(ForShell(f"    {line}") for line in _next(name, is_user=is_user))])


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise UnitRefused(
            "this user has no home directory, where its units belong: set HOME, or give --system"
        ) from error


def _command(*, must_be_seen: bool) -> str:
    """This command, as a unit starts it.

    Pip puts it beside Python or, for the Python of the system, elsewhere. Raises UnitRefused where
    it is not known, and where a unit of the machine must see it and its Python, and can't.
    """
    beside, typed = Path(sys.executable).with_name("commitlog"), Path(sys.argv[0])
    found = typed if typed.name == "commitlog" and typed.is_file() and not beside.is_file() else beside
    command = str(found.absolute())
    for path in (command, os.path.realpath(sys.executable)):
        if must_be_seen and path.startswith(tuple(f"{place}/" for place in _HIDDEN)):
            raise UnitRefused(
                f"{path} is in a home directory, which the units do not see: install the package elsewhere, with a Python "
                f"that is elsewhere, as in `/usr/bin/python3 -m venv /opt/commitlog`, and give this command there; or give "
                f"--user"
            )
    if not found.is_file():
        raise UnitRefused(f"{command} is not there: call the command by its own path, as in `~/.local/bin/commitlog`")
    escaped = command.replace("%", "%%")
    return f'"{escaped}"' if re.search(r"\s", escaped) else escaped


def _marked(text: str) -> str:
    """A unit with a first line by which the next installation knows whether it was edited."""
    crc = zlib.crc32(text.encode())
    return f"# Written by `commitlog systemd install`, crc32 {crc:08x}. To change it: `systemctl edit UNIT`.\n{text}"


def _check(units: dict[Path, str]) -> None:
    """Raises UnitRefused for a unit that is there and is not as an installation has written it."""
    for file in units:
        try:
            text = file.read_text()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UnitRefused(f"{file}: can't be read ({error}); move it away") from error
        mark = _WRITTEN.match(text)
        if mark is None or f"{zlib.crc32(text[mark.end() :].encode()):08x}" != mark[1]:
            raise UnitRefused(
                f"{file} was edited, or is not of `commitlog systemd install`; nothing is written. Put your changes into "
                f"`systemctl edit {file.name}`, and move this file away"
            )


def _write(units: dict[Path, str], own: dict[Path, str]) -> Iterator[str]:
    """Writes what differs, and says of each file what became of it. Raises OSError."""
    from commitlog.disk.file_channel import DISK

    for file, text in (units | own).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text() if file.exists() else None
        if before == text:
            yield f"unchanged {file}"
        elif file in own and before is not None:
            yield f"kept      {file}"
        else:
            DISK.replace_file(file, text.encode())
            file.chmod(0o644)
            yield f"wrote     {file}"


def _next(name: str, *, is_user: bool) -> Iterator[str]:
    """The commands that a person gives now."""
    systemctl = "systemctl --user" if is_user else "systemctl"
    if is_user:
        yield "loginctl enable-linger  # otherwise the store stops at logout"
    elif not _has_user():
        yield "useradd --system commitlog"
    yield f"{systemctl} daemon-reload"
    yield f"{systemctl} enable --now commitlog@{name}"
    if not is_user:
        yield "install -d -o commitlog -m 700 /var/backups/commitlog"
    yield f"{systemctl} enable --now commitlog-metrics@{name} commitlog-backup@{name}.timer"


def _has_user() -> bool:
    try:
        pwd.getpwnam("commitlog")
    except KeyError:
        return False
    return True
