"""Feeds a Kafka cluster with the messages of a store, each exactly once. Private.

All of it needs confluent-kafka and PyArrow: the import says so where one is missing.
"""

from importlib.util import find_spec

from commitlog.errors import MissingPackage, how_to_install

_NEEDED = {"confluent_kafka": "confluent-kafka", "pyarrow": "pyarrow"}

if missing := [package for module, package in _NEEDED.items() if find_spec(module) is None]:
    raise MissingPackage(f"forwarding needs {' and '.join(missing)}: {how_to_install('kafka', *missing)}")
