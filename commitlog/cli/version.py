"""`commitlog version`: the versions of all that matters in a report of a problem."""

from __future__ import annotations

import platform
from typing import Any

import typer

from commitlog.cli.arguments import JsonOption, print_json


def version(json: JsonOption = False) -> None:
    """Show the versions of the package, its core, Python and PySpark.

    commitlog version
    commitlog version --json
    """
    found = versions()
    if json:
        print_json(found)
        return
    for name, value in found.items():
        typer.echo(f"{name + ':':<11}{value or 'not installed'}")


def versions() -> dict[str, Any]:
    """Name → version; None for what is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    import commitlog
    from commitlog.native import description

    found: dict[str, Any] = {
        "commitlog": commitlog.__version__,
        "core": description,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in ("numpy", "pyarrow", "pyspark"):
        try:
            found[name] = installed(name)
        except PackageNotFoundError:
            found[name] = None
    return found
