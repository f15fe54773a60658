"""Where a Reader reads: a directory, or a server by URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from commitlog.errors import OptionError, named_while_loading
from commitlog.reading.message_source import MessageSource, Wanted
from commitlog.reading.store_messages import StoreMessages
from commitlog.system.clock import Clock

if TYPE_CHECKING:
    from commitlog.appending.followed_store import FollowedStore
    from commitlog.planning.address import Address

Path = str | os.PathLike[str]


def open_source(
    path: Path | Address,
    wanted: Wanted,
    clock: Clock,
    followed: FollowedStore | None,
    token: str | None,
    *files: Path | None,
) -> MessageSource:
    """Opens what a reader reads. `files` are token_file, ca_file, cert_file and key_file.

    `followed` is told where the store's pool is: the reader is in a hurry. An address, as only
    callers of ours have one, has its credentials already. Raises IllegalArgument, OptionError, and
    what StoreMessages and ServedMessages raise.
    """
    follow_pool = _nobody if followed is None else followed.follow
    if "://" not in str(path) and token is None and not any(files):
        return StoreMessages(cast(Path, path), wanted, clock, follow_pool)  # without PyArrow, which the rest needs
    with named_while_loading("reading by URL"):
        from commitlog.planning.address import OF_READ_ARROW, Address, Credentials, address_of
        from commitlog.remote.served_messages import ServedMessages
    if not isinstance(path, Address):
        path = address_of(path, Credentials.of(token, *files), OF_READ_ARROW) or path
    if not isinstance(path, Address):
        return StoreMessages(path, wanted, clock, follow_pool)
    if followed is not None:
        raise OptionError(f"{path}: hurry is for a reader on the store's own machine: leave it out")
    return ServedMessages(path, wanted, clock)


def _nobody(pool: object) -> None:
    """Nobody is told of a pool."""
