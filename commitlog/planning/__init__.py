"""Plans a read: options become queue offsets, and these become tasks. Private.

Spark's source and a server use it. It needs PyArrow and no PySpark.
"""

import commitlog.schemas  # noqa: F401  # says so where PyArrow is missing
