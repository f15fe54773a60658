"""Knows which call a thread answers. Long work asks now and then whether the client still waits.

Each call has a thread of gRPC's from its beginning to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import flight

_of_thread = threading.local()


class ClientGone(Exception):
    """The client has gone, or does not wait for the answer any more. Nobody hears of this error."""


@contextmanager
def call_of(context: flight.ServerCallContext) -> Iterator[None]:
    """Says that this thread answers a call."""
    _of_thread.context = context
    try:
        yield
    finally:
        _of_thread.context = None


def check_client() -> None:
    """Raises ClientGone where nobody waits for the answer of this thread's call."""
    context = getattr(_of_thread, "context", None)
    if context is not None and context.is_cancelled():
        raise ClientGone
