"""The warning for a reader that waits for topics that do not exist: they may be misspelt."""

from __future__ import annotations

from collections.abc import Collection

from commitlog.lines import printable


def missing_topics(place: object, wanted: Collection[str], known: Collection[str], who: str) -> str:
    """Returns a warning if some `wanted` topics are not among the `known` ones; else an empty text.

    A store without any topics gives no warning, because its topics may all be still to come. `who`
    names the waiting reader in the text.
    """
    missing = sorted(set(wanted).difference(known))
    if not missing or not known:
        return ""
    there = ", ".join(sorted(known))
    return printable(f"{place}: no topic {', '.join(missing)} yet, and {who} waits for it; there are: {there}")
