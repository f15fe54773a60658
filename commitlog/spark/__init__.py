"""PySpark and the commit log: a session with good settings, the lag of a query, and the format.

    spark = commitlog.spark.session("my app")
    source = spark.readStream.format("commitlog").option("path", "data/events")
    rows = source.option("subscribe", "orders").load()

Nothing here imports pyspark before it is needed. The format also works in a session that you have
made yourself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commitlog.spark.launching.sessions import session
    from commitlog.spark.query_lag import lag

__all__ = ["lag", "session"]

_HOMES = {"lag": "commitlog.spark.query_lag", "session": "commitlog.spark.launching.sessions"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'commitlog.spark' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
