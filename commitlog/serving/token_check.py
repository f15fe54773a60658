"""The check of a client's token at the beginning of each call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from pyarrow import flight

from commitlog.errors import AccessDenied, ServerError, ServingRefused
from commitlog.remote import requests
from commitlog.serving.access import EVERYTHING, Access, Tokens
from commitlog.serving.flight_errors import told_to_client
from commitlog.serving.limits import Limits

log = logging.getLogger(__name__)


class WhoAsks(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Finds out at the beginning of each call who asks. An unknown client gets no further."""

    def __init__(self, tokens: Tokens | None, limits: Limits, on_refusal: Callable[[], None]) -> None:
        super().__init__()
        self._tokens, self._limits, self._on_refusal = tokens, limits, on_refusal

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, list[str]]) -> KnownClient:
        del info
        with told_to_client(()):
            try:
                return KnownClient(partial(self._access, headers), self._limits)
            except AccessDenied:
                self._on_refusal()
                raise

    def _access(self, headers: Mapping[str, list[str]]) -> Access:
        if self._tokens is None:
            return EVERYTHING
        given = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), "")
        scheme, _, token = str(given).partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise AccessDenied(f"{requests.WANTS_TOKEN}: give an authorization header, Bearer and the token")
        try:
            access = self._tokens.find(token.strip())
        except ServingRefused as error:  # it names the file, which is no business of clients
            log.error("nobody is let in: %s", error)
            raise ServerError("the server can't use its file of tokens; its log says why") from None
        if access is None:
            raise AccessDenied("the server does not know this token; it may have been removed")
        return access


class KnownClient(flight.ServerMiddleware):  # type: ignore[misc]
    """Who makes a call, and what it may do."""

    def __init__(self, find: Callable[[], Access], limits: Limits) -> None:
        super().__init__()
        self._find = find
        self.access, self.limits = find(), limits

    def check(self) -> None:
        """Raises AccessDenied if the token was removed, or has other rights now."""
        if self._find() != self.access:
            raise AccessDenied(f"the token {self.access.name} has other rights now; open the stream again")
