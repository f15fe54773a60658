"""Feeds a Kafka cluster with the messages of a store, each exactly once. Private.

All of it needs confluent-kafka: the import says so where it is missing.
"""

from importlib.util import find_spec

import commitlog.schemas  # noqa: F401  # says so where PyArrow is missing
from commitlog.errors import MissingPackage, how_to_install

if find_spec("confluent_kafka") is None:
    raise MissingPackage(f"forwarding needs confluent-kafka: {how_to_install('kafka', 'confluent-kafka')}")
