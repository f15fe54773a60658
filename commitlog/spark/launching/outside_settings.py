"""Spark's settings that were made outside the program, before any Java runs.

`spark-submit` and `pyspark` start Java first, and Java knows all settings then. A plain Python
program starts Java itself. For such a program the settings are in the variable PYSPARK_SUBMIT_ARGS,
in `spark-defaults.conf` and in the variables MASTER and SPARK_DRIVER_MEMORY. This module reads them
as Spark does.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

MASTER, NAME, DRIVER_MEMORY = "spark.master", "spark.app.name", "spark.driver.memory"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_ARGUMENTS = {
    "--master": MASTER,
    "--name": NAME,
    "--driver-memory": DRIVER_MEMORY,
    "--driver-java-options": JAVA_OPTIONS,
    "--executor-memory": "spark.executor.memory",
}
"""Arguments of `spark-submit` → their settings, for which a session has defaults."""
_VARIABLES = {"MASTER": MASTER, "SPARK_DRIVER_MEMORY": DRIVER_MEMORY}
_PROPERTY = re.compile(r"\s*([^\s#!=:][^\s=:]*)\s*[=:]?\s*(.*?)\s*")


def outside_settings(spark: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings by name; `spark` is the home of Spark.

    Arguments win over files, and files over variables.
    """
    settings = {key: environment[name] for name, key in _VARIABLES.items() if environment.get(name)}
    arguments = list(_arguments(environment.get("PYSPARK_SUBMIT_ARGS", "")))
    directory = Path(environment.get("SPARK_CONF_DIR") or spark / "conf")
    files = [Path(value) for name, value in arguments if name == "--properties-file"][-1:]
    if not files or ("--load-spark-defaults", "") in arguments:
        files.insert(0, directory / "spark-defaults.conf")
    for file in files:
        settings |= _properties(file)
    for name, value in arguments:
        if name in ("--conf", "-c"):
            key, _, value = value.partition("=")
            settings[key] = value
        elif name in _ARGUMENTS:
            settings[_ARGUMENTS[name]] = value
    return settings


def _arguments(line: str) -> Iterator[tuple[str, str]]:
    """Each argument with its value, as `--name value` or `--name=value` gives it."""
    words = iter(shlex.split(line))
    for word in words:
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            return  # the program; what follows is for it
        if has_value:
            yield name, value
        elif word in ("--load-spark-defaults", "--verbose", "-v", "--supervise"):
            yield word, ""
        else:
            yield word, next(words, "")


def _properties(file: Path) -> dict[str, str]:
    """The settings of a file of Java properties. A file that can't be read has none."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}  # Spark goes on without its file of defaults, and itself reports any other one
    joined = re.sub(r"\\\n\s*", "", text)
    found = (_PROPERTY.fullmatch(line) for line in joined.splitlines())
    return {match[1]: match[2] for match in found if match}
