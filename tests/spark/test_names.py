"""The names that `commitlog.spark` gives its users."""

from __future__ import annotations

import importlib
import pkgutil

import commitlog.spark
from commitlog.spark.launching.sessions import LOG_SETTINGS


def test_no_module_takes_the_name_of_a_function() -> None:
    """An import of such a module would put it in the place of the function."""
    assert not {module.name for module in pkgutil.iter_modules(commitlog.spark.__path__)} & set(commitlog.spark.__all__)


def test_functions_are_found_whatever_was_imported_before() -> None:
    for module in pkgutil.iter_modules(commitlog.spark.__path__):
        importlib.import_module(f"commitlog.spark.{module.name}")
    assert all(callable(getattr(commitlog.spark, name)) for name in commitlog.spark.__all__)


def test_the_settings_of_log4j_are_there() -> None:
    assert "rootLogger" in LOG_SETTINGS.read_text()


def test_dir_names_what_users_call() -> None:
    assert {"lag", "session"} <= set(dir(commitlog.spark))
    assert not {name for name in dir(commitlog.spark) if not name.startswith("__")} - set(commitlog.spark.__all__)
