"""Configuration files: every knob documented, every mistake named."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from commitlog.config import Config
from commitlog.config_file import load_config
from commitlog.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


def test_default_toml_is_the_defaults_and_documents_every_knob() -> None:
    """It says each key once, with a comment above it, and loads as Config()."""
    assert load_config(CONFIGS / "default.toml") == Config()
    text = (CONFIGS / "default.toml").read_text()
    values = tomllib.loads(text)
    for section in dataclasses.fields(Config):
        knobs = {knob.name for knob in dataclasses.fields(getattr(Config(), section.name))}
        assert set(values[section.name]) == knobs
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name, is_knob, _ = line.partition(" = ")
        if is_knob and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), f"{name} has no comment above it"


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.toml")), ids=lambda file: file.name)
def test_every_file_in_configs_loads(file: Path) -> None:
    """What we ship is right."""
    load_config(file)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"stor": {}}, "unknown key stor"),
        ({"store": {"segment_byte": 1}}, "unknown key store.segment_byte"),
        ({"store": {"max_lanes": 0}}, "store.max_lanes = 0"),
        ({"store": {"max_lanes": 129}}, "store.max_lanes = 129: allowed are whole numbers from 1 to 128"),
        ({"store": {"max_lanes": 1.5}}, "store.max_lanes = 1.5: allowed are whole numbers from 1 to 128"),
        ({"store": {"segment_bytes": 100_000}}, "powers of two"),
        ({"store": {"flush_disk_type": "SOMETIMES"}}, "'SOMETIMES': allowed are 'ASYNC_FLUSH' and 'SYNC_FLUSH'"),
        ({"store": {"record_crc": 1}}, "store.record_crc = 1: allowed are true and false"),
        ({"retention": {"delete_when": 4}}, "retention.delete_when = 4: allowed are strings"),
        ({"flusher": {"linger_ms": "5"}}, "flusher.linger_ms = '5'"),
        ({"producer": {"buffer_wait_ms": -1}}, "0 to 86400000"),
        ({"store": 5}, "config: store = 5: allowed are keys and values below [store]"),
        ({"retention": {"delete_when": "24"}}, "retention.delete_when = '24'"),
        ({"retention": {"disk_refuse_percent": 80}}, "retention.disk_clean_forcibly_percent = 85"),
    ],
)
def test_a_mistake_names_key_value_and_what_is_allowed(values: dict[str, Any], says: str) -> None:
    """One line, with the way out."""
    with pytest.raises(ConfigError) as error:
        load_config(values)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).count("allowed") <= 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read: No such file or directory"),
        (b"[store\n", "not valid TOML: "),
        (b"\xff", "can't be read: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_that_is_not_there_or_not_toml_is_named_once(content: bytes | None, says: str, tmp_path: Path) -> None:
    """The error begins with the file."""
    file = tmp_path / "mine.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(file))}: {says}") as error:
        load_config(file)
    assert str(error.value).count(file.name) == 1


def test_every_knob_says_when_a_running_store_takes_it() -> None:
    """What needs a restart keeps its value; all else is taken over."""
    for section in dataclasses.fields(Config):
        old = getattr(Config(), section.name)
        for knob in dataclasses.fields(old):
            value = getattr(old, knob.name)
            other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"
            new = dataclasses.replace(Config(), **{section.name: dataclasses.replace(old, **{knob.name: other})})
            config, changed = Config().reloaded(new)
            (when,) = changed.values()
            assert list(changed) == [f"{section.name}.{knob.name}"]
            assert config == (Config() if when.startswith("needs") else new)
    assert Config().reloaded(Config()) == (Config(), {})


def test_a_file_overrides_only_what_it_names(tmp_path: Path) -> None:
    """The rest keeps its default."""
    file = tmp_path / "mine.toml"
    file.write_text('[store]\nflush_disk_type = "SYNC_FLUSH"\n')
    config = load_config(file)
    assert config.store.flush_disk_type == "SYNC_FLUSH"
    assert config.flusher == Config().flusher
    assert Config.from_json(config.to_json()) == config


def test_sizes_and_times_may_have_a_unit() -> None:
    config = load_config(
        {
            "store": {"segment_bytes": "64MiB"},
            "committer": {"linger_ms": "12ms"},
            "supervisor": {"stop_timeout_ms": "1.5m"},
            "retention": {"reserved_hours": "3d", "max_bytes": "1TB"},
        }
    )
    assert (config.store.segment_bytes, config.committer.linger_ms) == (1 << 26, 12)
    assert config.supervisor.stop_timeout_ms == 90_000
    assert (config.retention.reserved_hours, config.retention.max_bytes) == (72, 10**12)


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        ("committer", {"linger_ms": "12"}, "committer.linger_ms = '12' is no duration"),
        ("committer", {"linger_ms": "1.5us"}, "committer.linger_ms = '1.5us': that is 0.0015"),
        ("committer", {"linger_ms": "2d"}, "committer.linger_ms = 172800000: allowed are whole numbers from 0"),
        ("store", {"segment_bytes": "64 apples"}, "store.segment_bytes = '64 apples' is no size"),
        ("store", {"segment_bytes": "60MiB"}, "powers of two"),
        ("store", {"max_lanes": "4"}, "store.max_lanes = '4': allowed are whole numbers"),
        ("retention", {"reserved_hours": "90m"}, "that is 1.5, and allowed are whole numbers"),
    ],
)
def test_a_unit_that_does_not_fit_is_named(section: str, values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config({section: values})
