"""How a store comes back at a start: with its pool (adoption) or from its files (recovery).

Private.
"""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str], None]
"""Takes a line for the store's owner: what a start has found or done."""
