"""The server of the page: this machine only, read-only, and only for the one who has the address.

Everybody on a machine reaches its loopback addresses, and a store is private. So the address that
is printed has a token, as Jupyter's does; the browser gets it as a cookie. A page of another site
can't use it: the cookie is `SameSite=Strict`, and the `Host` must be this machine (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import mimetypes
import secrets
import socket
from collections.abc import Iterator
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from commitlog.errors import CommitLogError, IllegalArgument
from commitlog.lines import to_json
from commitlog.ui.looks import Looks
from commitlog.ui.topic_messages import COUNT_MAX, messages
from commitlog.watching.bounded_server import BoundedHandler, BoundedServer

WAIT_SECONDS = 10.0
"""How long an answer waits for the next look."""
_PAGE = files("commitlog.ui").joinpath("page")
_FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/plot.js": "plot.js"}
_NOTHING_FROM_ELSEWHERE = (
    "default-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _NOTHING_FROM_ELSEWHERE,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(BoundedServer):
    """Serves the page of one store. `url` is the address to open, with its token.

    Raises IllegalArgument for an address that is not this machine's own, and OSError where the port
    can't be had.
    """

    def __init__(self, path: Path, looks: Looks, host: str = "127.0.0.1", port: int = 0) -> None:
        address = _loopback(host)
        self.address_family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        super().__init__((str(address), port), _Handler)
        self.path, self.looks = path, looks
        self.token = secrets.token_urlsafe(24)
        self.port = int(self.server_address[1])
        shown = f"[{address}]" if address.version == 6 else str(address)
        self.hosts = {f"{name}:{self.port}" for name in (shown, "localhost")}
        self.url = f"http://{shown}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """The name of the token's cookie. Browsers share cookies among the ports of a host."""
        return f"commitlog-{self.port}"


def _loopback(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        raise IllegalArgument(f"listen on 127.0.0.1, ::1 or localhost, not on {host!r}") from None
    if not address.is_loopback:
        raise IllegalArgument(
            f"{host} can be reached from other machines, and the page shows messages: listen on 127.0.0.1, and forward the "
            "port with `ssh -L`"
        )
    return address


class _Refused(Exception):
    """A request that is not answered: the status and one line of text."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BoundedHandler):
    server: PageServer

    def answer(self) -> None:
        try:
            self._answer()
        except _Refused as error:
            self._send(error.status, f"{error}\n".encode(), "text/plain; charset=utf-8")
        except (CommitLogError, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            self._send_json({"error": str(error), "name": type(error).__name__}, HTTPStatus.BAD_REQUEST)

    def _answer(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            raise _Refused(HTTPStatus.FORBIDDEN, "this page is for this machine only")
        try:
            where = urlsplit(self.path)
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"this is no address: {error}") from error
        query = {name: values[-1] for name, values in parse_qs(where.query).items()}
        if where.path == "/" and self._is_token(query.get("token", "")):
            self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", **self._welcome())
            return
        if not any(map(self._is_token, self._cookies())):
            raise _Refused(
                HTTPStatus.UNAUTHORIZED, "open the address that `commitlog ui` has printed: it has the token"
            )
        if where.path in _FILES:
            name = _FILES[where.path]
            kind = mimetypes.guess_type(name)[0] or "text/plain"
            self._send(HTTPStatus.OK, _PAGE.joinpath(name).read_bytes(), f"{kind}; charset=utf-8")
        elif where.path == "/api/looks":
            self._send_json({"looks": self.server.looks.after(_number(query, "after", 0), WAIT_SECONDS)})
        elif where.path == "/api/messages":
            self._send_json({"messages": self._messages(query)})
        else:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _cookies(self) -> Iterator[str]:
        """The values of our cookie.

        Other programs of this host have cookies here too, with any text, so nothing else is read.
        """
        for part in self.headers.get("Cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.server.cookie:
                yield value

    def _messages(self, query: dict[str, str]) -> list[dict[str, Any]]:
        partition = _number(query, "partition", -1)
        return messages(
            self.server.path,
            query.get("topic", ""),
            query.get("start", "earliest"),
            None if partition < 0 else partition,
            _number(query, "count", COUNT_MAX),
        )

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _welcome(self) -> dict[str, str]:
        flags = "Path=/; HttpOnly; SameSite=Strict"
        return {"Location": "/", "Set-Cookie": f"{self.server.cookie}={self.server.token}; {flags}"}

    def _send_json(self, values: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, to_json(values), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, **more: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **more}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def _number(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise IllegalArgument(f"{name} is a number, not {text!r:.40}")
    return int(text) if text else default
