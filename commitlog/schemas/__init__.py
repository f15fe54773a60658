"""The schema of a topic, and rows of it as Arrow record batches. Private.

All of it needs PyArrow: the import says so where it is missing.
"""

from importlib.util import find_spec

from commitlog.errors import MissingPackage, how_to_install

if find_spec("pyarrow") is None:
    raise MissingPackage(f"rows and columns need PyArrow: {how_to_install('arrow', 'pyarrow')}")
