"""Fixtures of the tests of replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.scene import Scene
from tests.serving.asking import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def scene(tmp_path: Path, certificates: Certificates, templates: Path) -> Scene:
    return Scene(tmp_path, certificates, templates)
