"""Fixtures: the worker's one Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forwarding.kafka import Broker, running_broker


@pytest.fixture(scope="session")
def kafka(shm_base: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker. Tests name their topics by `new_name`, and their stores have ids."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
