"""Slices of a log as Arrow columns. Private. Like `commitlog.schemas`, it needs PyArrow."""

import commitlog.schemas  # noqa: F401  # says so where PyArrow is missing
