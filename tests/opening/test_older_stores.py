"""Stores of each released version open: what they have is read, and they go on.

`older_stores/` has them, one archive a version. A change that breaks this test breaks the promise
of docs/compatibility.md: the code has to read the old bytes, and the archive stays as it is.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import commitlog
from tests.command_line import run
from tests.nightly import with_nightly
from tests.opening.older_stores.making import HERE, make, shown

VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))


@pytest.fixture(scope="module", params=VERSIONS)
def unpacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("older")
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.fixture
def expected(unpacked: Path) -> Any:
    return json.loads((unpacked / "shown.json").read_text())


def test_there_is_a_store_of_the_first_version() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.nightly
def test_the_stores_of_this_version_can_be_made(tmp_path: Path, unpacked: Path) -> None:
    """As before a release: of the same kinds."""
    make(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in unpacked.iterdir()}


@pytest.mark.parametrize("name", with_nightly(["cut-off", "replica"], ["stopped", "backup"]))
def test_a_store_opens_and_goes_on(name: str, unpacked: Path, expected: Any) -> None:
    """One that was stopped, one that a power loss cut off, a backup and a replica in its place.

    The stopped one is read before it is opened, too.
    """
    path = unpacked / name
    if name == "stopped":
        assert shown(path) == expected
    if name == "replica":
        promoted = run("promote", path)
        assert promoted.returncode == 0, promoted.stderr
    with commitlog.Store.open(path) as store, store.producer() as producer:
        assert shown(path) == expected
        producer.send_rows("sales", [{"id": 7, "fruit": "fig", "price": 1.0}])
        sent = producer.send("orders", b"after the upgrade")
        producer.flush()
        with commitlog.Reader(path, "orders", name="billing") as reader:
            places = [[message.partition, message.offset] for message in reader]
    assert sorted(places) == sorted([*expected["rest"], [sent.partition, sent.offset]])
    before = [it["offset"] for it in expected["messages"]["orders"] if it["partition"] == sent.partition]
    assert sent.offset == max(before) + 1
    assert commitlog.read(path, "sales").count() == len(expected["rows"]) + 1
    verified = run("verify", path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
