"""What a server serves, where, and to whom: checked before anything listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.file_channel import DISK
from commitlog.errors import IllegalArgument, ServingRefused
from commitlog.planning.address import PORT, is_loopback
from commitlog.reading.view import open_view
from commitlog.serving.access import Tokens

_FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class ServerSettings:
    """`stores` has the paths by name; the files are PEM, and `tokens` is a file of hashes."""

    stores: dict[str, str]
    host: str
    port: int
    certificate: str | None = None
    key: str | None = None
    client_authority: str | None = None
    tokens: str | None = None
    writable: bool = False
    advertise: str = ""
    """The host that clients are told to ask, where they are told of other processes."""
    memory_bytes: int = 0
    """How much memory a process may take: see memory.py."""

    @property
    def tls(self) -> bool:
        return self.certificate is not None


def settings_of(
    stores: Sequence[str],
    listen: str,
    *,
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None,
    tokens: Path | None,
    writable: bool,
    advertise: str | None,
) -> ServerSettings:
    """Checks what a user has asked for.

    Raises IllegalArgument, ServingRefused for files that can't be used, StoreNotFound,
    StoreDamaged.
    """
    host, port = listening_address(listen)
    if (certificate is None) != (key is None):
        raise IllegalArgument("--certificate and --key: give both, or none")
    if client_authority is not None and certificate is None:
        raise IllegalArgument("--client-authority: certificates of clients need TLS: give --certificate and --key too")
    if not is_loopback(host):
        if certificate is None:
            raise IllegalArgument(
                f"--listen {listen}: other machines reach this address, so it needs TLS: give --certificate and --key, or "
                f"listen on 127.0.0.1"
            )
        if tokens is None and client_authority is None:
            raise IllegalArgument(
                f"--listen {listen}: other machines reach this address, so clients must prove who they are: give --tokens "
                f"or --client-authority, or listen on 127.0.0.1"
            )
    for file in (certificate, key, client_authority):
        if file is not None:
            read_pem(str(file))
    if tokens is not None:
        Tokens(tokens)
    return ServerSettings(
        _named(stores),
        host,
        port,
        certificate=_absolute(certificate),
        key=_absolute(key),
        client_authority=_absolute(client_authority),
        tokens=_absolute(tokens),
        writable=writable,
        advertise=advertise or _reachable(host),
    )


def listening_address(listen: str) -> tuple[str, int]:
    """HOST:PORT, HOST or PORT. Raises IllegalArgument."""
    host, colon, port = listen.rpartition(":")
    if not colon or listen.endswith("]"):
        host, port = ("127.0.0.1", listen) if listen.isdecimal() else (listen, str(PORT))
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise IllegalArgument(f"--listen {listen}: it is HOST:PORT, such as 127.0.0.1:{PORT} or 0.0.0.0:{PORT}")
    return host, int(port)


def read_pem(file: str) -> bytes:
    """A file of certificates, or a key. Raises ServingRefused."""
    try:
        data = DISK.read_named_file(file, _FILE_BYTES_MAX)
    except OSError as error:
        raise ServingRefused(
            f"{file}: {error.strerror}; give a file in PEM format that this process can read"
        ) from None
    if b"-----BEGIN " not in data:
        raise ServingRefused(f"{file}: not a file in PEM format (-----BEGIN …)")
    return data


def _named(stores: Sequence[str]) -> dict[str, str]:
    """The stores by name: NAME=PATH, or a path, whose last part is the name."""
    found: dict[str, str] = {}
    for text in stores:
        name, is_named, path = text.partition("=")
        if not is_named or os.path.lexists(text):
            path = text
            name = Path(os.path.abspath(text)).name
        if name in found:
            raise IllegalArgument(f"two stores are called {name}: give one another name, as in other={path}")
        if not name or "/" in name:
            raise IllegalArgument(f"{text}: give a store a name without /, as in orders={path}")
        open_view(path).close()
        found[name] = os.path.abspath(path)
    return found


def _absolute(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())


def _reachable(host: str) -> str:
    return socket.getfqdn() if host in ("0.0.0.0", "::") else host  # what the user has given
