"""What a read takes of a store: options become offsets, and those become tasks. Private.

Spark's source and a server plan with it. It needs PyArrow and no PySpark.
"""

import commitlog.schemas  # noqa: F401  # says so where PyArrow is missing
