"""PySpark and the commit log: a session with good settings, how a query goes, and the format.

    spark = commitlog.spark.session("my app")
    source = spark.readStream.format("commitlog").option("path", "data/events")
    rows = source.option("subscribe", "orders").load()

Nothing here imports pyspark before it is needed. The format also works in a session that you have
made yourself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commitlog.spark.launching.jvm_reader import use
    from commitlog.spark.launching.sessions import session
    from commitlog.spark.query_lag import lag
    from commitlog.spark.query_progress import show_progress
    from commitlog.spark.rows_to_python import foreach, write_real_time

__all__ = ["foreach", "lag", "session", "show_progress", "use", "write_real_time"]

_HOMES = {
    "foreach": "commitlog.spark.rows_to_python",
    "lag": "commitlog.spark.query_lag",
    "session": "commitlog.spark.launching.sessions",
    "show_progress": "commitlog.spark.query_progress",
    "use": "commitlog.spark.launching.jvm_reader",
    "write_real_time": "commitlog.spark.rows_to_python",
}


def __dir__() -> list[str]:
    """The names for users."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a type checker would believe that there is every name

    def __getattr__(name: str) -> Any:
        """Loads a name when it is first asked for. Raises MissingPackage."""
        if name not in _HOMES:
            raise AttributeError(f"module 'commitlog.spark' has no attribute {name!r}")
        import importlib.util

        if importlib.util.find_spec("pyspark") is None:
            from commitlog.errors import MissingPackage, how_to_install

            raise MissingPackage(
                f"commitlog.spark.{name} needs PySpark: {how_to_install('spark', 'pyspark', 'pyarrow')}"
            )
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
