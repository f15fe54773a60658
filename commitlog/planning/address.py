"""The address of a served store, and the credentials that a client shows to its server.

    commitlog+tls://host:4433/orders-store      commitlog+tls://first,second:4434/orders-store
    commitlog://localhost:4433/orders-store

Several hosts have copies of the same store, and are tried in turn.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import asdict, dataclass, field, replace
from urllib.parse import quote, unquote

from commitlog.errors import IllegalArgument

PORT = 4433
_SCHEMES = {"commitlog": False, "commitlog+tls": True}
_URL = re.compile(r"(commitlog(?:\+tls)?)://([^/?#]*)(?:/([^?#]*))?", re.IGNORECASE)
_ANY_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_SHAPE = "give commitlog+tls://HOST:PORT/STORE"


@dataclass(frozen=True)
class Credentials:
    """A client's token, and files in PEM format. Only the names of files leave this process.

    `token` is the token itself, and `token_file` a file that holds nothing else. `ca_file` has the
    authorities that servers' certificates are checked with; without it, the authorities that come
    with gRPC count. `cert_file` and `key_file` are the client's own.
    """

    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def of(cls, token: str | None, *files: str | os.PathLike[str] | None) -> Credentials:
        """Those of a user's arguments. `files`: token_file, ca_file, cert_file and key_file."""
        return cls(token, *(None if file is None else os.fspath(file) for file in files))


@dataclass(frozen=True)
class CredentialNames:
    """The user's names for the fields of Credentials and for the URL. Errors use these names."""

    token: str = "token"
    token_file: str = "token_file"
    ca_file: str = "ca_file"
    cert_file: str = "cert_file"
    key_file: str = "key_file"
    url: str = "path"


OF_READ_ARROW = CredentialNames()
OF_PRODUCER = CredentialNames(url="url")
OF_SPARK = CredentialNames(
    "option token", "option tokenFile", "option caFile", "option certFile", "option keyFile", "option path"
)
OF_COMMAND_LINE = CredentialNames("--token-file", "--token-file", "--ca-file", "--cert-file", "--key-file", "STORE")


@dataclass(frozen=True)
class Address:
    """A store at one or more servers. `names` are the names that the address's user knows."""

    hosts: tuple[tuple[str, int], ...]
    store: str
    tls: bool
    credentials: Credentials = Credentials()
    names: CredentialNames = field(default=OF_READ_ARROW, compare=False)

    def __str__(self) -> str:
        """The URL, without credentials. If no store is named, it is the server's URL."""
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.hosts)
        store = f"/{quote(self.store)}" if self.store else ""
        return f"{'commitlog+tls' if self.tls else 'commitlog'}://{hosts}{store}"

    def with_credentials(self, credentials: Credentials) -> Address:
        """Returns the address of the same store with these credentials."""
        return replace(self, credentials=credentials)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the URL of a served store."""
    return isinstance(path, str) and path.partition("://")[0].lower() in _SCHEMES and "://" in path


def parse_address(url: str) -> Address:
    """Reads the URL of a store. Raises IllegalArgument, which says what is wrong with it."""
    found = _URL.fullmatch(url.strip())
    if not found:
        if "?" in url or "#" in url:
            raise IllegalArgument(f"{shown_url(url)}: a store's URL has no ? and no #; {_SHAPE}")
        raise IllegalArgument(f"{shown_url(url)}: not the URL of a store; {_SHAPE}")
    scheme, hosts, store = found[1].lower(), found[2], unquote(found[3] or "").rstrip("/")
    if "@" in hosts:
        raise IllegalArgument("a store's URL has no user and no password: give the token apart from it")
    if not store or "/" in store:
        raise IllegalArgument(f"{shown_url(url)}: it names no store, or more than one; {_SHAPE}")
    parsed = tuple(_host(text, url) for text in hosts.split(","))
    tls = _SCHEMES[scheme]
    if not tls and (far := [host for host, _ in parsed if not is_loopback(host)]):
        raise IllegalArgument(
            f"{shown_url(url)}: commitlog:// is not encrypted, so it is for this machine only; for {far[0]} give "
            f"commitlog+tls://"
        )
    return Address(parsed, store, tls)


def address_of(path: str | os.PathLike[str], credentials: Credentials, names: CredentialNames) -> Address | None:
    """The address of a served store, with these credentials; None if the path is a directory.

    Raises IllegalArgument, also for credentials that don't go together, or not with the path.
    """
    called = asdict(names)
    given = [name for name, value in asdict(credentials).items() if value is not None]
    if not is_url(path):
        if names is not OF_SPARK and isinstance(path, str) and _ANY_URL.match(path):  # Spark's may be file:///…
            raise IllegalArgument(
                f"{names.url}: {shown_url(path)}: not the URL of a store; {_SHAPE}, or the path of a directory"
            )
        if given:
            raise IllegalArgument(
                f"{called[given[0]]}: it is for a served store, commitlog+tls://…; {names.url} is a directory"
            )
        return None
    try:
        address = parse_address(os.fspath(path))
    except IllegalArgument as error:
        raise IllegalArgument(f"{names.url}: {error}") from None
    if {"token", "token_file"} <= set(given):
        raise IllegalArgument(f"{names.token} and {names.token_file}: give only one of them")
    if ("cert_file" in given) != ("key_file" in given):
        raise IllegalArgument(f"{names.cert_file} and {names.key_file}: give both, or none")
    if not address.tls and (files := [name for name in given if name in ("ca_file", "cert_file", "key_file")]):
        raise IllegalArgument(f"{called[files[0]]}: it is for commitlog+tls://; commitlog:// has no certificates")
    return replace(address, credentials=credentials, names=names)


def _host(text: str, url: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text.strip())
    port = int(found[2] or PORT) if found else 0
    if not found or not 0 < port < 1 << 16:
        raise IllegalArgument(f"{shown_url(url)}: {text!r} is not a host with a port; {_SHAPE}")
    return found[1].strip("[]"), port


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or number."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_TOKEN = re.compile(r"clog_[^/?#]*")


def shown_url(url: str) -> str:
    """A URL for an error's text without a password, a token, or text behind the store."""
    scheme, separator, place = _TOKEN.sub("clog_…", url.strip()).partition("://")
    if not separator:
        scheme, place = "", scheme
    if "@" in place:
        return f"{scheme}{separator}…"
    found = re.match(r"[^/?#]*(/[^/?#]*)?", place)
    shown = found[0] if found else ""
    rest = place[len(shown) :]
    return f"{scheme}{separator}{shown}"[:200] + ("" if rest in ("", "/") else f"{rest[0]}…")
