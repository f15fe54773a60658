"""A commit log fed through shared memory: local Python processes append, PySpark reads.

    store = commitlog.Store.open("data/events")      # makes it if missing, starts the stages
    producer = store.producer()                      # elsewhere: commitlog.Producer("data/events")
    receipt = producer.send("orders", b"...", key="42")
    receipt.wait("flushed")

This module and the modules `config`, `errors`, `logging`, `spark` and `tracing` have everything for
users. All other modules are private and may change any day.
"""

from __future__ import annotations

import importlib

from commitlog.system import forks as _forks  # noqa: F401 - its hook comes before those that the program registers from here on

__version__ = "0.1.0"

# Type checkers take this for typing.TYPE_CHECKING. The import of typing takes long, and nobody can
# catch a Ctrl-C while this module is loaded.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commitlog import config as config
    from commitlog import errors as errors
    from commitlog import logging as logging
    from commitlog import spark as spark
    from commitlog import tracing as tracing
    from commitlog.appending.row_writer import RowWriter
    from commitlog.backups.backup_report import BackupReport
    from commitlog.backups.store_backup import backup
    from commitlog.client.arrow import read_arrow
    from commitlog.client.producer import Producer
    from commitlog.client.reader import Reader
    from commitlog.client.scan import Scan, read
    from commitlog.client.statistics import (
        LaneStatistics,
        ReaderStatistics,
        RetentionStatistics,
        StageStatistics,
        StoreStatistics,
    )
    from commitlog.client.store import Store
    from commitlog.config import Config
    from commitlog.errors import CommitLogError
    from commitlog.message import Message
    from commitlog.receipt import BatchReceipt, Level, Receipt
    from commitlog.remote.remote_producer import RemoteProducer, RemoteReceipt
    from commitlog.schemas.topic_schemas import TopicSchema
    from commitlog.shm.counters import Throughput
    from commitlog.status import AppendMessageStatus, PutMessageStatus, StopReport
    from commitlog.system.clock import Clock

__all__ = [
    "AppendMessageStatus",
    "BackupReport",
    "BatchReceipt",
    "Clock",
    "CommitLogError",
    "Config",
    "LaneStatistics",
    "Level",
    "Message",
    "Producer",
    "PutMessageStatus",
    "Reader",
    "ReaderStatistics",
    "Receipt",
    "RemoteProducer",
    "RemoteReceipt",
    "RetentionStatistics",
    "RowWriter",
    "Scan",
    "StageStatistics",
    "StopReport",
    "Store",
    "StoreStatistics",
    "Throughput",
    "TopicSchema",
    "__version__",
    "backup",
    "errors",
    "read",
    "read_arrow",
]

_MODULES = ("config", "errors", "logging", "spark", "tracing")
_HOMES = {
    "AppendMessageStatus": "status",
    "BackupReport": "backups.backup_report",
    "BatchReceipt": "receipt",
    "Clock": "system.clock",
    "CommitLogError": "errors",
    "Config": "config",
    "LaneStatistics": "client.statistics",
    "Level": "receipt",
    "Message": "message",
    "Producer": "client.producer",
    "PutMessageStatus": "status",
    "Reader": "client.reader",
    "ReaderStatistics": "client.statistics",
    "Receipt": "receipt",
    "RemoteProducer": "remote.remote_producer",
    "RemoteReceipt": "remote.remote_producer",
    "RetentionStatistics": "client.statistics",
    "RowWriter": "appending.row_writer",
    "Scan": "client.scan",
    "StageStatistics": "client.statistics",
    "StopReport": "status",
    "Store": "client.store",
    "StoreStatistics": "client.statistics",
    "Throughput": "shm.counters",
    "backup": "backups.store_backup",
    "read": "client.scan",
    "read_arrow": "client.arrow",
    "TopicSchema": "schemas.topic_schemas",
}
"""Each name and the module that it is loaded from."""


def __dir__() -> list[str]:
    """The names for users."""
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> Any:
        """Loads a name when it is first asked for.

        So a Spark worker that reads imports neither ZeroMQ nor pydantic.
        """
        if name in _MODULES:
            return importlib.import_module(f"commitlog.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'commitlog' has no attribute {name!r}")
        from commitlog.errors import named_while_loading

        with named_while_loading(f"commitlog.{name}"):
            value = globals()[name] = getattr(importlib.import_module(f"commitlog.{_HOMES[name]}"), name)
        return value
