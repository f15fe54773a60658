"""What a store is set to, for checks that depend on it."""

from __future__ import annotations

from commitlog.config import Config
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.doctor.finding import Surroundings
from commitlog.errors import CommitLogError


def facts_of(here: Surroundings) -> StoreFacts | None:
    """The content of `store.json`, or None.

    Why it can't be read is said by the check of the store.
    """
    try:
        return StoreDirectory(here.store, here.channel).load() if here.store else None
    except CommitLogError:
        return None


def settings_of(here: Surroundings) -> Config:
    """The configuration of the store's last start, or the defaults."""
    facts = facts_of(here)
    try:
        return Config.from_json(facts.config) if facts else Config()
    except CommitLogError:
        return Config()
