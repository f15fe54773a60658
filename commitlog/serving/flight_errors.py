"""Errors as a client may see them: by class and text, without a path of this machine."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from pyarrow import flight

from commitlog.errors import (
    AccessDenied,
    CommitLogError,
    CorruptRecord,
    DamagedFile,
    DiskError,
    IllegalRow,
    ServerBusy,
    ServerError,
    StoreDamaged,
    StoreRefused,
    refusal,
    shortage,
)
from commitlog.remote.server_errors import to_bytes
from commitlog.serving.abandoned_calls import ClientGone
from commitlog.serving.access import EVERYTHING, Access
from commitlog.serving.served_store import ServedStore
from commitlog.shm.region import base_directory

_OF_ANY_TOPIC = DamagedFile, StoreDamaged, StoreRefused, DiskError
"""Errors that may name a topic that their client has not named."""

_TOPIC = re.compile(r"(\btopic |/consumequeue/|/topics/)([\w%|.-]*[\w%|-])")
"""Where an error of damage names a topic: in its words, and in the path of a file."""

log = logging.getLogger(__name__)


@contextmanager
def told_to_client(stores: Iterable[ServedStore], access: Access = EVERYTHING) -> Iterator[None]:
    """Turns any error into the one that Flight passes on to a client with this access.

    An error that is none of ours is logged here with its traceback, and its client hears only that
    there was one.
    """
    stores = list(stores)
    try:
        yield
    except flight.FlightError:
        raise
    except ClientGone:
        raise flight.FlightCancelledError("the client is gone") from None
    except CommitLogError as error:
        raise as_flight_error(_not_short(error), stores, access) from None
    except OSError as error:
        refused = _not_short(refusal(error, stores[0].path, "answering a client"))
        raise as_flight_error(refused, stores, access) from None
    except MemoryError:
        raise as_flight_error(_busy("memory"), stores) from None
    except Exception:
        log.exception("a call has failed")
        raise as_flight_error(ServerError("the server has failed; its log says how"), stores) from None


def _not_short(error: CommitLogError) -> CommitLogError:
    """The error, or ServerBusy where it is this process that lacks something: its client may wait.

    What such an error says is for who runs the server. So it is logged here.
    """
    what = shortage(error)
    if not what:
        return error
    log.warning("a client is told to try again: %s", error)
    busy = _busy(what)
    busy.rows_sent = error.rows_sent
    return busy


def _busy(what: str) -> ServerBusy:
    return ServerBusy(f"the server has no {what} for it; try again")


class Refused(Exception):
    """An error without a traceback, for GetSchema: PyArrow passes no error of Flight's on there.

    PyArrow formats the traceback of an error, and sends it to the client. Where that fails, PyArrow
    sends the text alone. So this class lets nobody format its traceback.
    """

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise TypeError("this error is for a client, who sees no traceback")


def as_flight_error(
    error: CommitLogError, stores: Iterable[ServedStore] = (), access: Access = EVERYTHING
) -> flight.FlightError:
    """Flight's error for one of ours, as `client_error` makes it."""
    error = client_error(error, stores, access)
    kind = flight.FlightUnauthenticatedError if isinstance(error, AccessDenied) else flight.FlightServerError
    return kind(str(error)[:1_000], extra_info=to_bytes(error))


def client_error(error: CommitLogError, stores: Iterable[ServedStore], access: Access = EVERYTHING) -> CommitLogError:
    """The error as a client may see it, with the stores' names in place of their paths.

    Damage may be that of any topic. One that the client may not see is not named.
    """
    for store in stores:
        error = _changed(error, partial(without_paths, store=store))
    return _changed(error, partial(_without_topics, access=access)) if isinstance(error, _OF_ANY_TOPIC) else error


def damage_as_seen(text: str, store: ServedStore, access: Access) -> str:
    """What a client may see of a text that tells of damage."""
    return _without_topics(without_paths(text, store), access)


def _without_topics(text: str, access: Access) -> str:
    return _TOPIC.sub(lambda found: found[0] if access.covers(found[2]) else f"{found[1]}…", text)


def without_paths(text: str, store: ServedStore) -> str:
    """A text with the store's name in place of its path, and without the directory of its pool."""
    for path in {str(store.path), os.path.realpath(store.path)}:
        text = text.replace(path, store.name)
    return re.sub(rf"{re.escape(str(base_directory()))}/[\w.-]+", "of the store", text)


def _changed(error: CommitLogError, change: Callable[[str], str]) -> CommitLogError:
    """The same error with another text."""
    if isinstance(error, CorruptRecord):
        file = None if error.file is None else change(error.file)
        return CorruptRecord(change(error.reason), error.offset, file)
    text = change(str(error))
    kind = type(error)
    made = IllegalRow(text, error.row) if isinstance(error, IllegalRow) else kind(text)
    made.rows_sent = error.rows_sent
    return made
