"""The server of `commitlog metrics --listen`: each scrape is of that moment."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from commitlog.watching.bounded_server import BoundedHandler, BoundedServer


class MetricsServer(BoundedServer):
    """Serves the metrics of a registry. Raises OSError where the address can't be had."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family, self.registry = family, registry
        super().__init__((str(address[0]), port), _Scrape)


class _Scrape(BoundedHandler):
    server: MetricsServer

    def answer(self) -> None:
        names = parse_qs(self.path.partition("?")[2]).get("name[]")
        registry: Any = self.server.registry.restricted_registry(names) if names else self.server.registry
        encode, kind = _encoder(self.headers.get("Accept", ""))
        body = encode(registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The format that the scraper accepts; the plain one if it accepts none that we have."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return choose_encoder("")
