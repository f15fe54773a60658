"""`commitlog systemd install`: what it writes, what it says, and what it leaves alone."""

from __future__ import annotations

import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from commitlog.cli.systemd import systemd
from commitlog.errors import UnitRefused
from tests.children import in_child
from tests.command_line import run

CONFIGS = Path(__file__).parents[2] / "configs"
UNITS = {file.name for file in CONFIGS.iterdir() if file.suffix in (".service", ".timer")}


def install(root: Path, *words: object) -> list[str]:
    done = run("systemd", "install", "events", "--system", "--root", root, *words)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


def test_the_machine_gets_all_units(tmp_path: Path) -> None:
    """They run this very command. What comes next is said, line by line."""
    said = install(tmp_path)
    units = tmp_path / "etc/systemd/system"
    assert {file.name for file in units.iterdir()} == UNITS
    command = Path(sys.executable).with_name("commitlog")
    assert f"\nExecStart={command} run --config /etc/commitlog/%i.toml" in (units / "commitlog@.service").read_text()
    assert not [file for file in units.iterdir() if "/opt/commitlog/bin/commitlog run" in file.read_text()]
    assert (tmp_path / "etc/commitlog/events.toml").read_text() == (CONFIGS / "default.toml").read_text()
    environment = (tmp_path / "etc/commitlog/events.env").read_text()
    assert "METRICS_LISTEN=127.0.0.1:9877\n" in environment
    assert "commitlog-metrics@events" in environment
    at = said.index("next:")
    assert [line.split()[0] for line in said[:at]] == ["wrote"] * (len(UNITS) + 2)
    assert "    systemctl enable --now commitlog@events" in said[at:]
    assert (units / "commitlog@.service").stat().st_mode & 0o777 == 0o644


def test_again_it_changes_nothing_and_keeps_what_is_the_operators(tmp_path: Path) -> None:
    install(tmp_path)
    own = tmp_path / "etc/commitlog/events.env"
    own.write_text("METRICS_LISTEN=127.0.0.1:9999\n")
    said = install(tmp_path)
    assert f"kept      {own}" in said
    assert [line.split()[0] for line in said[: said.index("next:")]].count("unchanged") == len(UNITS) + 1
    assert own.read_text() == "METRICS_LISTEN=127.0.0.1:9999\n"


def test_a_unit_of_an_older_version_is_replaced(tmp_path: Path) -> None:
    """As it was written, and not edited since: its first line says so."""
    install(tmp_path)
    unit = tmp_path / "etc/systemd/system/commitlog@.service"
    older = "[Service]\nExecStart=/old/commitlog run\n"
    unit.write_text(
        re.sub(r"crc32 \w+", f"crc32 {crc32(older.encode()):08x}", unit.read_text().split("\n")[0]) + f"\n{older}"
    )
    assert f"wrote     {unit}" in install(tmp_path)
    assert "/old/commitlog" not in unit.read_text()


@pytest.mark.parametrize("change", ["edited", "somebody else's"])
def test_what_an_operator_has_edited_is_refused_by_name(tmp_path: Path, change: str) -> None:
    """And nothing else is written either."""
    install(tmp_path)
    units = tmp_path / "etc/systemd/system"
    unit = units / "commitlog-serve@.service"
    edited = unit.read_text() + "Nice=5\n" if change == "edited" else "[Service]\n"
    unit.write_text(edited)
    (units / "commitlog@.service").unlink()
    done = run("systemd", "install", "events", "--system", "--root", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"commitlog: {unit} was edited, or is not of".encode())
    assert done.stderr.endswith(b"[UnitRefused]\n")
    assert unit.read_text() == edited
    assert not (units / "commitlog@.service").exists()


def test_a_user_gets_units_without_what_only_the_machine_may_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = run("systemd", "install", "events", "--user")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"    systemctl --user enable --now commitlog@events" in done.stdout.splitlines()
    assert b"    loginctl enable-linger  # otherwise the store stops at logout" in done.stdout.splitlines()
    units = tmp_path / "config/systemd/user"
    assert {file.name for file in units.iterdir()} == UNITS
    for file in units.iterdir():
        text = file.read_text()
        assert not re.search(r"^(User|StateDirectory|Protect\w+|Private\w+|CapabilityBoundingSet)=", text, re.MULTILINE)
        assert not re.search("/etc/commitlog|/var/lib|/var/backups|multi-user|network-online", text), file
    assert "\nNoNewPrivileges=yes\n" in (units / "commitlog@.service").read_text()
    assert (tmp_path / "config/commitlog/events.env").exists()
    assert (tmp_path / ".local/share/commitlog").stat().st_mode & 0o777 == 0o700


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number without a name, as some containers run with."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(UnitRefused, match="no home directory, where its units belong: set HOME, or give --system"):
        systemd("install", "events", user=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("scope", ["--system", "--user"])
def test_systemd_understands_what_is_installed(tmp_path: Path, scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All units at once, with instances. The commands of the units are there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    root = ("--root", tmp_path) if scope == "--system" else ()
    assert run("systemd", "install", "events", scope, *root).returncode == 0
    units = tmp_path / ("etc/systemd/system" if root else "config/systemd/user")
    named = [str(units / name.replace("@", "@events")) for name in sorted(UNITS)]
    for name in named:
        shutil.copy(name.replace("@events", "@"), name)
    quiet = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    done = subprocess.run(["systemd-analyze", scope, "verify", *named], env=quiet, capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "commitlog" in line] == []


def test_it_prints_the_same_and_writes_nothing(tmp_path: Path) -> None:
    text = "\n".join(install(tmp_path, "--print"))
    assert not list(tmp_path.iterdir())
    for name in (*UNITS, "events.toml", "events.env"):
        assert re.search(rf"^# {re.escape(str(tmp_path))}/etc/\S*/?{re.escape(name)}$", text, re.MULTILINE), name


@pytest.mark.parametrize("words", [("remove", "events"), ("install", "a/b"), ("install", "../x")])
def test_what_it_can_not_do(words: tuple[str, ...]) -> None:
    assert run("systemd", *words).returncode == 2


@pytest.mark.parametrize("what", ["the command", "its Python"])
def test_a_command_in_a_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """ProtectHome hides it from the units, and also a Python below /root that /opt links to."""
    place = "/home/ann/.venv/bin/commitlog" if what == "the command" else "/root/.pyenv/bin/python3"
    if what == "the command":
        monkeypatch.setattr(sys, "executable", "/home/ann/.venv/bin/python")
    else:
        (tmp_path / "python").symlink_to(place)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    done = run("systemd", "install", "events", "--system", "--print")
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"{place} is in a home directory, which the units do not see".encode() in done.stderr


def test_units_run_a_command_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip puts that of the system's Python into /usr/local/bin or ~/.local/bin, not beside it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python3"))
    words = ("systemd", "install", "events", "--system", "--root", tmp_path, "--print")
    done = run(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(f"commitlog: {tmp_path}/bin/commitlog is not there: ".encode())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "commitlog").touch()  # what was typed
    assert f"\nExecStart={tmp_path}/commitlog run ".encode() in run(*words).stdout


def test_a_user_who_may_not_write_is_not_told_to_be_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/config")  # there nobody may write
    done = run("systemd", "install", "events", "--user")
    assert done.returncode == 1
    assert done.stderr.endswith(b"; check that this user may write there [UnitRefused]\n")


def test_a_unit_for_which_is_no_room(tmp_path: Path) -> None:
    """The error names the unit, and no half of one stays."""

    def without_room() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return run("systemd", "install", "events", "--system", "--root", tmp_path).stderr.decode()

    said = in_child(without_room)
    assert re.match(rf"commitlog: {tmp_path}/etc/systemd/system/commitlog\S*: File too large; ", said)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
