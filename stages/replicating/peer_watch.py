"""Asks the other machines' stores again and again whether one of them was promoted.

Each side of such a question learns the epoch of the other one. So when two stores run that were one
once, the older one stops (`disk/replica_mark.py`), whichever of them can reach the other.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from commitlog.config import ReplicationConfig
from commitlog.disk.replica_mark import mark_superseded
from commitlog.disk.store_directory import StoreDirectory, StoreFacts
from commitlog.errors import CommitLogError
from commitlog.replicas.greeting import ask_epoch
from commitlog.replicas.tls import Credentials

_ANSWER_SECONDS = 2.0

log = logging.getLogger(__name__)


class PeerWatch:
    """A thread that asks all peers once in `heartbeat_ms`, until `close`."""

    def __init__(self, directory: StoreDirectory, facts: StoreFacts, config: ReplicationConfig) -> None:
        self._directory, self._facts = directory, facts
        self._peers, self._seconds = config.peers.split(), config.heartbeat_ms / 1000
        self._credentials = Credentials(Path(config.certificate), Path(config.key), Path(config.authority))
        self._said: dict[str, str] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            for peer in self._peers:
                self._say(peer, self._ask(peer))
            self._end.wait(self._seconds)

    def _ask(self, peer: str) -> str:
        """Asks one peer. Returns what is to be said of it."""
        try:
            welcome = ask_epoch(peer, self._credentials, self._facts, _ANSWER_SECONDS)
            if welcome.store != self._facts.id:
                return f"has another store, {welcome.store}"
            if welcome.epoch > self._facts.epoch:
                mark_superseded(self._directory, welcome.epoch, peer)
            return f"has epoch {welcome.epoch}"
        except (CommitLogError, OSError, EOFError) as error:
            return str(error)

    def _say(self, peer: str, text: str) -> None:
        """Logs what is new."""
        if self._said.get(peer) != text:
            self._said[peer] = text
            log.info("peer %s: %s", peer, text)

    def close(self) -> None:
        """Ends the thread."""
        self._end.set()
        self._thread.join()
