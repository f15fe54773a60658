"""What is said of topics that are not there, to who waits for them: they may be misspelt."""

from __future__ import annotations

from collections.abc import Collection

from commitlog.lines import printable


def missing_topics(place: object, wanted: Collection[str], known: Collection[str], who: str) -> str:
    """A warning where some `wanted` topics are not among the `known` ones; else an empty text.

    In a store without topics all may be to come, so nothing is said. `who` waits for them.
    """
    missing = sorted(set(wanted).difference(known))
    if not missing or not known:
        return ""
    there = ", ".join(sorted(known))
    return printable(f"{place}: no topic {', '.join(missing)} yet, and {who} waits for it; there are: {there}")
