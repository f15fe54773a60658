"""The systemd unit and the container recipe name only things that exist.

These are commands, options, files and limits.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest
import typer.main

from commitlog.cli.app import app
from commitlog.config import Config

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "configs/commitlog@.service"
SERVE_UNIT = ROOT / "configs/commitlog-serve@.service"
REPLICA_UNIT = ROOT / "configs/commitlog-replica@.service"
FORWARD_UNIT = ROOT / "configs/commitlog-forward@.service"
METRICS_UNIT = ROOT / "configs/commitlog-metrics@.service"
BACKUP_UNIT = ROOT / "configs/commitlog-backup@.service"
TIMER = ROOT / "configs/commitlog-backup@.timer"
SERVICES = [UNIT, SERVE_UNIT, REPLICA_UNIT, FORWARD_UNIT, METRICS_UNIT, BACKUP_UNIT]
ENVIRONMENT = (ROOT / "configs/systemd.env").read_text()
EXPOSURE_MAX = 4.0
"""What `systemd-analyze security` may say at most, of 10. It is 1.6."""
RECIPE = ROOT / "configs/Containerfile"
STAGES_STOP_SECONDS = 4 * Config().supervisor.stop_timeout_ms / 1000


def unit(file: Path = UNIT) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)  # a filter of calls has two lines
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(file)
    return parser


def state_directories(file: Path = UNIT) -> list[str]:
    """What systemd makes for the unit's user, for the store `events`."""
    return [f"/var/lib/{name}" for name in unit(file)["Service"]["StateDirectory"].replace("%i", "events").split()]


def check_command(words: list[str]) -> None:
    """That `commitlog <command> <options and arguments>` would be understood."""
    assert Path(words[0]).name == "commitlog"
    group = typer.main.get_command(app)
    context = group.make_context("commitlog", words[1:], resilient_parsing=True)
    command = group.get_command(context, words[1])  # type: ignore[attr-defined]
    assert command is not None
    parsed = command.make_context(words[1], list(words[2:]), parent=context)
    assert parsed.params.get("store") or parsed.params["directory"]


def test_the_unit_runs_a_command_that_there_is() -> None:
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"].replace("%i", "events"))
    check_command(words)
    assert words[-1] in state_directories()
    for path in re.findall(r"configs/[\w.@-]+", UNIT.read_text()):
        assert (ROOT / path).exists()


def test_the_unit_lets_the_store_drain_and_keeps_its_memory() -> None:
    """SIGTERM goes to one process, every stage has time, and locked memory has no limit.

    Nobody removes the pool.
    """
    service = unit()["Service"]
    assert float(service["TimeoutStopSec"]) > STAGES_STOP_SECONDS
    assert service["KillMode"] == "mixed"
    assert service["RemoveIPC"] == "no"
    assert service["LimitMEMLOCK"] == "infinity"


def test_the_unit_of_the_server_runs_a_command_that_there_is() -> None:
    """With TLS and tokens, and of the store that the other unit runs."""
    service = unit(SERVE_UNIT)["Service"]
    words = shlex.split(service["ExecStart"].replace("\\\n", " ").replace("%i", "events"))
    check_command(words)
    assert {"--listen", "--certificate", "--key", "--tokens"} <= set(words)
    assert words[2] in state_directories()
    assert service["Type"] == "notify"
    assert (service["KillMode"], service["RemoveIPC"]) == ("mixed", "no")


def test_the_unit_of_a_replica_runs_a_command_that_there_is() -> None:
    """In the directory of the unit of the store, which it excludes."""
    parsed = unit(REPLICA_UNIT)
    words = shlex.split(parsed["Service"]["ExecStart"].replace("\\\n", " ").replace("%i", "events"))
    check_command([word.replace("${REPLICA_FROM}", "db1:4440") for word in words])
    assert words[2] in state_directories()
    assert parsed["Unit"]["Conflicts"] == UNIT.name.replace("@", "@%i")
    assert parsed["Service"]["Type"] == "notify"


@pytest.mark.parametrize(
    ("file", "store_at"), [(FORWARD_UNIT, 2), (METRICS_UNIT, 2), (BACKUP_UNIT, 2)], ids=lambda value: str(value)[-20:]
)
def test_the_units_beside_a_store_run_commands_that_there_are(file: Path, store_at: int) -> None:
    """Of the store that the first unit runs, as its user. What differs is in its environment."""
    text = file.read_text()
    service = unit(file)["Service"]
    line = service["ExecStart"].replace("%i", "events").replace("$FORWARD_OPTIONS", "--by-key")
    names = re.findall(r"\$\{(\w+)\}", line)
    for name in names:
        (value,) = re.findall(rf"^#?{name}=(.+)$", ENVIRONMENT, re.MULTILINE)
        line = line.replace(f"${{{name}}}", value)
    words = shlex.split(line)
    check_command(words)
    assert words[store_at] in state_directories()
    assert (service["User"], service["RemoveIPC"]) == (unit()["Service"]["User"], "no")
    assert service["EnvironmentFile"].removeprefix("-") == "/etc/commitlog/%i.env"
    # A variable without a line in that file: the unit has a value, or the file has to be there.
    assert all(f"Environment={name}=" in text or not service["EnvironmentFile"].startswith("-") for name in names)


def test_the_forwarder_is_not_started_again_in_vain() -> None:
    """As docs/forward.md says."""
    assert unit(FORWARD_UNIT)["Service"]["RestartPreventExitStatus"] in (ROOT / "docs/forward.md").read_text()


def test_the_timer_starts_the_backup() -> None:
    """It has its name, and no other unit's."""
    assert TIMER.with_suffix(".service") == BACKUP_UNIT
    assert "Unit" not in unit(TIMER)["Timer"]
    assert unit(TIMER)["Install"]["WantedBy"] == "timers.target"
    assert unit(BACKUP_UNIT)["Service"]["Type"] == "oneshot"


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.name)
def test_a_unit_may_do_little(file: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / file.name.replace("@", "@events")
    copy.write_text(file.read_text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", copy], capture_output=True, text=True
    )
    found = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert found, done
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.parametrize(
    "file", [UNIT, SERVE_UNIT, REPLICA_UNIT, FORWARD_UNIT, BACKUP_UNIT], ids=lambda file: file.name
)
def test_a_unit_makes_the_directory_of_all_stores(file: Path) -> None:
    """Its user may write there: copies and files of tokens stand beside the stores."""
    assert "/var/lib/commitlog" in state_directories(file)


@pytest.mark.parametrize("file", [*SERVICES, TIMER], ids=lambda file: file.name)
def test_systemd_understands_the_unit(file: Path, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / file.name.replace("@", "@events")
    copy.write_text(file.read_text().replace("/opt/commitlog/bin/commitlog", "/bin/true"))
    copy.chmod(0o644)
    if file is TIMER:
        (tmp_path / "commitlog-backup@events.service").write_text("[Service]\nExecStart=/bin/true\n")
    quiet = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    done = subprocess.run(["systemd-analyze", "verify", copy], env=quiet, capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if copy.name in line]
    assert complaints == []


def test_the_container_runs_a_command_that_there_is() -> None:
    """With files that are in the checkout."""
    text = RECIPE.read_text()
    words = [orjson.loads(found) for found in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)]
    check_command([word for part in words for word in part])
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in line.split()[:-1])
    packaged = set(re.search(r"only-include = \[(.*?)\]", (ROOT / "pyproject.toml").read_text())[1].split(", "))  # type: ignore[index]
    assert {name.strip('"') for name in packaged} <= set(re.findall(r"[\w.]+", text))
    assert float(re.search(r"--stop-timeout=(\d+)", text)[1]) > STAGES_STOP_SECONDS  # type: ignore[index]


def test_an_image_of_podman_keeps_the_health_check() -> None:
    """Podman's own format of images has none, and podman only warns."""
    text = RECIPE.read_text()
    builds = re.findall(r"podman build .*", text)
    assert "HEALTHCHECK" in text
    assert builds
    assert all("--format docker" in words for words in builds)
