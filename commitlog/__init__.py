"""A commit log fed through shared memory: RocketMQ's storage write path for local Python processes,
read by PySpark.

    store = commitlog.Store.open("data/events")      # makes it if missing, starts the stages
    producer = store.producer()                       # any other process: commitlog.Producer("data/events")
    receipt = producer.send("orders", b"...", key="42")
    receipt.wait("flushed")

Everything a user touches is here, in `commitlog.errors`, `commitlog.logging` and `commitlog.spark`;
the rest may change any day.
"""

from __future__ import annotations

import importlib

# As typing has it. To import that takes long, and nobody can catch a Ctrl-C while this module is
# loaded.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commitlog import errors
    from commitlog.config import Config
    from commitlog.message import Message
    from commitlog.producer import Producer
    from commitlog.reader import Reader
    from commitlog.receipt import Receipt
    from commitlog.status import PutMessageStatus
    from commitlog.store import StopReport, Store

__all__ = ["Config", "Message", "Producer", "PutMessageStatus", "Reader", "Receipt", "StopReport", "Store", "errors"]

_HOMES = {
    "Config": "commitlog.config",
    "Producer": "commitlog.producer",
    "PutMessageStatus": "commitlog.status",
    "Message": "commitlog.message",
    "Reader": "commitlog.reader",
    "Receipt": "commitlog.receipt",
    "StopReport": "commitlog.store",
    "Store": "commitlog.store",
    "errors": "commitlog.errors",
    "logging": "commitlog.logging",
    "spark": "commitlog.spark",
}


def __getattr__(name: str) -> Any:
    """Loads a name when it is first asked for: a Spark worker that reads imports neither ZeroMQ nor
    pydantic.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'commitlog' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"commitlog.{name}" else getattr(module, name)
    globals()[name] = value
    return value
