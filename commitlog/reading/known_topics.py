"""Which topics a store knows: those with messages, and those that were declared.

Every door that reads asks here whether a topic may be read, so that all say the same of a name that
is misspelt. The schemas are looked at only where a topic has no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from commitlog.errors import UnknownTopic
from commitlog.record.topic_names import check_topic
from commitlog.text.lines import printable


class TopicsOfStore(Protocol):
    """What an index of a store, or of a served one, says of its topics."""

    def topics(self, *, deleted: bool = False) -> list[str]:
        """The topics that have, or had, a message; with `deleted`, those that were deleted, too."""

    def declared_topics(self) -> Collection[str]:
        """The topics that have a schema."""


def _every(_topic: str) -> bool:
    return True


def known_topics(store: TopicsOfStore) -> list[str]:
    """The topics that the store knows, sorted. A topic that was deleted is not among them."""
    return sorted({*store.topics(), *store.declared_topics()})


def check_known(
    place: object, store: TopicsOfStore, wanted: Collection[str], is_visible: Callable[[str], bool] = _every
) -> None:
    """Checks that the store at a place knows the wanted topics.

    Raises IllegalTopic, and UnknownTopic, which lists those topics that are visible.
    """
    missing = _unknown(store, set(wanted).difference(store.topics()))
    if missing:
        raise UnknownTopic(_missing(place, missing, filter(is_visible, known_topics(store))))


def no_lane(topic: str, lane: int, known: Iterable[int]) -> str:
    """What everything says that is asked for a lane which a topic does not have."""
    return f"topic {topic!r} has no lane {lane}; it has {', '.join(map(str, sorted(known))) or 'none yet'}"


def waiting_for(place: object, store: TopicsOfStore, wanted: Collection[str], who: str) -> str:
    """Returns a warning if the store does not know some wanted topics, else an empty text.

    A store without any topics gives no warning, because its topics may all be still to come. Nor
    does a topic that was deleted: a reader may have read it to its end. `who` names the reader that
    waits. Raises IllegalTopic for a topic that can't come.
    """
    missing = _unknown(store, set(wanted).difference(store.topics(deleted=True)))
    if not missing or not (known := known_topics(store)):
        return ""
    return _missing(place, missing, known, f" yet, and {who} waits for it")


def _missing(place: object, missing: Iterable[str], known: Iterable[str], more: str = "") -> str:
    """What everything that misses a topic says."""
    return printable(f"{place}: no topic {', '.join(missing)}{more}; there are: {', '.join(known) or 'none'}")


def _unknown(store: TopicsOfStore, without_messages: set[str]) -> list[str]:
    """Those of the topics that are not declared either, sorted. Raises IllegalTopic."""
    for topic in sorted(without_messages):
        check_topic(topic)
    return sorted(without_messages.difference(store.declared_topics())) if without_messages else []
