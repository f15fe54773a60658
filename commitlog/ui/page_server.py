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
import threading
from collections.abc import Generator, Iterator, Sequence
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from commitlog.errors import CommitLogError, IllegalArgument
from commitlog.text.lines import to_json
from commitlog.ui.looks import Looks
from commitlog.ui.topic_messages import COUNT_MAX, Question, found_messages, whole_message
from commitlog.watching.bounded_server import BoundedHandler, BoundedServer

WAIT_SECONDS = 10.0
"""How long an answer waits for the next look."""
_PAGE = files("commitlog.ui").joinpath("page")
_FILES = {"/": "index.html"} | {
    f"/{name}": name for name in ("page.css", "page.js", "plot.js", "shown.js", "folded.js", "messages.js")
}
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
    """Serves the page of stores, each with its looks. `url` is the address to open, with its token.

    Raises IllegalArgument for an address that is not this machine's own, and OSError where the port
    can't be had.
    """

    def __init__(self, looks: Sequence[Looks], host: str = "127.0.0.1", port: int = 0) -> None:
        address = _loopback(host)
        self.address_family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        super().__init__((str(address), port), _Handler)
        self.stores = {_name(one.path, [each.path for each in looks]): one for one in looks}
        self.ends = threading.Event()
        self.token = secrets.token_urlsafe(24)
        self.port = int(self.server_address[1])
        shown = f"[{address}]" if address.version == 6 else str(address)
        self.hosts = {f"{name}:{self.port}" for name in (shown, "localhost")}
        self.url = f"http://{shown}:{self.port}/?token={self.token}"

    def shutdown(self) -> None:
        self.ends.set()  # for answers that follow
        super().shutdown()

    def store(self, name: str | None) -> Looks:
        """The looks at the store of this name; None takes the first. Raises IllegalArgument."""
        if name is None:
            return next(iter(self.stores.values()))
        if name not in self.stores:
            raise IllegalArgument(f"there is no store {name} on this page; there are {', '.join(self.stores)}")
        return self.stores[name]

    @property
    def cookie(self) -> str:
        """The name of the token's cookie. Browsers share cookies among the ports of a host."""
        return f"commitlog-{self.port}"


def _name(path: Path, among: Sequence[Path]) -> str:
    """What the page calls a store: its directory's name, or its path where two have the same."""
    return path.name if sum(each.name == path.name for each in among) == 1 else str(path)


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
            self._send_json(self._looks(query))
        elif where.path == "/api/messages":
            self._send_lines(self._messages(query))
        elif where.path == "/api/message":
            self._send_json({"message": self._message(query)})
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

    def _looks(self, query: dict[str, str]) -> dict[str, Any]:
        looks = self.server.store(query.get("store")).after(_number(query, "after", 0), WAIT_SECONDS)
        stores = [
            {"name": name, "path": str(each.path), "status": each.status()} for name, each in self.server.stores.items()
        ]
        return {"looks": looks, "stores": stores, "address": self.server.url}

    def _message(self, query: dict[str, str]) -> dict[str, Any]:
        path, topic, search = (
            self.server.store(query.get("store")).path,
            query.get("topic", ""),
            query.get("search", ""),
        )
        return whole_message(path, topic, _number(query, "partition", 0), _number(query, "offset", 0), search)

    def _messages(self, query: dict[str, str]) -> Generator[dict[str, Any], None, None]:
        partition = _number(query, "partition", -1)
        question = Question(
            query.get("topic", ""),
            query.get("start", "earliest"),
            None if partition < 0 else partition,
            _number(query, "count", COUNT_MAX),
            query.get("search", ""),
            query.get("follow") == "yes",
        )
        return found_messages(self.server.store(query.get("store")).path, question, self.server.ends.is_set)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _welcome(self) -> dict[str, str]:
        flags = "Path=/; HttpOnly; SameSite=Strict"
        return {"Location": "/", "Set-Cookie": f"{self.server.cookie}={self.server.token}; {flags}"}

    def _send_json(self, values: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, to_json(values), "application/json")

    def _send_lines(self, lines: Generator[dict[str, Any], None, None]) -> None:
        """Sends a JSON object a line, each as soon as it is there. An error is the last one."""
        line = next(lines)  # an error of the question is an answer of its own
        self._send_head(HTTPStatus.OK, {"Content-Type": "application/x-ndjson", "Connection": "close"})
        try:
            while True:
                self.wfile.write(to_json(line) + b"\n")
                try:
                    line = next(lines)
                except StopIteration:
                    return
                except CommitLogError as error:
                    line = {"error": str(error), "name": type(error).__name__}
        finally:
            lines.close()

    def _send(self, status: HTTPStatus, body: bytes, kind: str, **more: str) -> None:
        more = {name.replace("_", "-"): value for name, value in more.items()}
        self._send_head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **more})
        self.wfile.write(body)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _number(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise IllegalArgument(f"{name} is a number, not {text!r:.40}")
    return int(text) if text else default
