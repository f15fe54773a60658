"""The position of a named reader in the store's directory, whose name this process holds."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping

from commitlog.disk.locks import Lock
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReaderError, shortage
from commitlog.reading.named_reader import FORWARD, PYTHON, NamedReader
from commitlog.reading.named_readers import NamedReaders
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import open_view
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.text.lines import for_shell


class StoredPosition:
    """See KeptPosition. Making one takes the name, as long as the process lives.

    Raises ReaderInUse, and ReaderError if this process may only read the store.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        store_id: str,
        name: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        isolation: str = "flushed",
    ) -> None:
        self.name, self.store_id = name, store_id
        self._may_be_ahead = isolation != "flushed"
        self._index: TopicIndex | None = None
        """What is flushed, for a reader that may be ahead. It has a view of its own."""
        self._readers = NamedReaders(directory, clock)
        self._checked: object = None
        """The stamp of a `store.json` of this store, and its epoch."""
        self._held = held = self._readers.hold(name)
        self._let_go = weakref.finalize(self, _let_go, self._readers, held, os.getpid())

    @property
    def place(self) -> str:
        return str(self._readers.directory.path)

    def flushed(self, places: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        if not self._may_be_ahead:
            return dict(places)
        if self._index is None:
            self._index = TopicIndex(open_view(self._readers.directory.path))
        self._index.refresh()
        ends = {
            (topic, lane): known.end
            for lane, index in self._index.lanes.items()
            for topic, known in index.queues.items()
        }
        return {key: min(to, ends.get(key, 0)) for key, to in places.items()}

    def load(self) -> NamedReader | None:
        try:
            known = self._readers.load(self.name)
        except FileNotFoundError:
            return None
        except OSError as error:
            way_out = "try again" if shortage(error) else "remove it, or fix it"
            raise ReaderError(f"reader {self.name}: {error.filename}: {error.strerror}; {way_out}") from error
        check_owner(known, self.store_id, self._readers)
        return known

    def save(self, reader: NamedReader, epoch: int | None) -> None:
        try:
            self._check_store(epoch)
            self._readers.hold_on(self._held, self.name)
            self._readers.save(self._readers.moved(reader))
        except OSError as error:
            raise unwritable(self.name, self._readers, error) from error

    def check(self) -> None:
        """Nobody can take a name whose lock this process holds."""

    def let_go(self) -> None:
        self._let_go()
        if self._index is not None:
            self._index.lanes.clear()
            self._index.view.close()

    def _check_store(self, epoch: int | None) -> None:
        """Raises ReaderError for another store, and if a start has found a loss since.

        The start may have moved the reader.
        """
        directory = self._readers.directory
        checked = directory.file_stamp(), epoch
        if checked == self._checked:
            return
        facts = directory.load()
        if facts.id != self.store_id:
            raise ReaderError(f"reader {self.name}: {directory.path} is another store now: make a new reader for it")
        if epoch is not None and facts.epoch != epoch:
            raise ReaderError(
                f"reader {self.name}: {directory.path} was started since and has lost messages, so this position may be "
                "that of others: make a new reader of this name, which begins where they begin"
            )
        self._checked = checked


def _let_go(readers: NamedReaders, held: Lock, pid: int) -> None:
    if os.getpid() == pid:
        readers.let_go(held)


def check_owner(reader: NamedReader, store_id: str, readers: NamedReaders) -> None:
    """Raises ReaderError if a position is not a Python reader's, or belongs to another store."""
    remove = f"`commitlog readers {for_shell(readers.directory.path)} --remove {for_shell(reader.name)}`"
    if reader.kind == FORWARD:
        raise ReaderError(
            f"reader {reader.name} is a forwarder's, and Kafka has its position: forward under another --name to begin anew. "
            f"For a reader of Python choose another name, or drop this one with {remove}"
        )
    if reader.kind != PYTHON:
        raise ReaderError(
            f"reader {reader.name} is a Spark query's, and its checkpoint says where it is: start the query with a new "
            f"checkpoint to begin elsewhere. For a reader of Python choose another name, or drop this one with {remove}"
        )
    if reader.store_id != store_id:
        raise ReaderError(
            f"reader {reader.name}: its position belongs to another store ({reader.store_id}; this one is {store_id}): "
            f"drop the reader with {remove}, then it begins anew"
        )


def unwritable(name: str, readers: NamedReaders, error: OSError) -> ReaderError:
    place = readers.directory.readers_directory
    way_out = "try again" if shortage(error) else "make room or fix permissions"
    return ReaderError(f"reader {name}: its position can't be written to {place}: {error.strerror}; {way_out}")
