"""`commitlog demo`: three producers, two live tables of what they send, and keys that kill.

Each process may be killed at any moment, and what was accepted is in the log, once.
"""

import importlib.util

from commitlog.errors import MissingPackage, how_to_install

_NEEDED = ("polars", "pyarrow", "pyspark")


def check_packages() -> None:
    """Raises MissingPackage where a package of the extra is missing, before anything is started."""
    missing = [name for name in _NEEDED if not importlib.util.find_spec(name)]
    if missing:
        raise MissingPackage(f"the demo needs {', '.join(missing)}: {how_to_install('demo', *missing)}")
