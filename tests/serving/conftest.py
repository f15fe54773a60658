"""Fixtures of the tests of served stores."""

from __future__ import annotations

import pytest

from tests.serving.asking import Certificates


@pytest.fixture(autouse=True)
def _grpc_is_there(served_base: str) -> None:
    """What gRPC keeps open in this process for good is open before a test looks for leaks."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
