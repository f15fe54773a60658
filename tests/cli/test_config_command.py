"""`commitlog config`: files, what a store uses, what differs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import commitlog
from commitlog.cli.app import app
from commitlog.config import Config
from commitlog.config_file import load_config


def config(*words: object) -> str:
    done = CliRunner().invoke(app, ["config", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", ["durable", "rocketmq"])
def test_diff_is_a_file_that_says_the_same(name: str) -> None:
    short = tomllib.loads(config(name, "--diff"))
    assert load_config(short) == load_config(tomllib.loads(config(name)))
    assert config(name, "--diff", "--json") == orjson.dumps(short, option=orjson.OPT_INDENT_2).decode() + "\n"
    default = Config().to_json()
    assert all(default[section][knob] != value for section, knobs in short.items() for knob, value in knobs.items())


def test_the_default_differs_in_nothing() -> None:
    assert config("--diff") == "# nothing differs from the default\n"
    assert config("--diff", "--json") == "{}\n"
    assert orjson.loads(config("--json")) == Config().to_json()


def test_what_a_store_uses(tmp_path: Path) -> None:
    """Also after its stop, and the size that was chosen for its segments."""
    given = {"store": {"segment_bytes": 65536}, "committer": {"linger_ms": 3}, "retention": {"delete_when": "04"}}
    with commitlog.Store.open(tmp_path / "store", given) as store:
        assert tomllib.loads(config("--effective", store.path, "--diff")) == given
    assert tomllib.loads(config("--effective", store.path, "--diff")) == given
    assert load_config(tomllib.loads(config("--effective", store.path))) == load_config(given)


def test_a_start_without_a_configuration_has_the_last_one(tmp_path: Path) -> None:
    """By the defaults, retention would delete after 72 hours what the store was told to keep."""
    path, given = tmp_path / "store", {"retention": {"reserved_hours": 0}, "store": {"flush_disk_type": "SYNC_FLUSH"}}
    commitlog.Store.open(path, given).close()
    commitlog.Store.open(path).close()
    command = [sys.executable, "-m", "commitlog.cli", "run", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stdout.readline().startswith(b"running ")
        running.terminate()
    assert running.returncode == 0
    shown = tomllib.loads(config("--effective", path, "--diff"))
    assert shown["retention"] == given["retention"]
    assert shown["store"]["flush_disk_type"] == "SYNC_FLUSH"
    commitlog.Store.open(path, {}).close()
    assert tomllib.loads(config("--effective", path, "--diff")).get("retention") is None
