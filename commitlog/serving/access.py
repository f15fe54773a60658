"""Who may use a server, and for what: tokens, kept as hashes in a file of the server's machine.

    {"format": 1, "tokens": [{"name": "billing", "sha256": "…", "topics": ["orders*"],
                              "read": true, "write": false}]}

A token has 256 random bits, so a plain hash of it is as good as a slow one. The file is looked at
again whenever it has changed. So a token that is removed is refused from then on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import orjson

from commitlog.disk.file_channel import DISK
from commitlog.disk.locks import poll, try_file
from commitlog.errors import AccessDenied, IllegalArgument, ServingRefused, disk_error, shortage
from commitlog.system.clock import SYSTEM_CLOCK

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}")
_FILE_BYTES_MAX = 4 << 20
_LOCK_NS = 10_000_000_000
"""How long a change of the file waits for that of another process."""
_PREFIX = "clog_"
"""The begin of every token, so that a token that somebody left in a file is recognised."""


@dataclass(frozen=True)
class Access:
    """What a client may do. `topics` are names, in which `*` stands for anything."""

    name: str
    topics: tuple[str, ...] = ("*",)
    read: bool = True
    write: bool = False

    def covers(self, topic: str) -> bool:
        """Whether a topic is among those that the client may use."""
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)

    @property
    def covers_all(self) -> bool:
        """Whether it is for every topic, whatever its name."""
        return "*" in self.topics

    def check_reads(self, topics: Iterable[str] = ()) -> None:
        """Raises AccessDenied if the client may not read, or not these topics."""
        self._check(self.read, "read", topics)

    def check_writes(self, topics: Iterable[str] = ()) -> None:
        """Raises AccessDenied if the client may not write, or not to these topics."""
        self._check(self.write, "write", topics)

    def _check(self, may: bool, what: str, topics: Iterable[str]) -> None:
        if not may:
            raise AccessDenied(f"the token {self.name} is not one to {what} with; ask who runs the server for one")
        for topic in topics:
            if not self.covers(topic):
                raise AccessDenied(
                    f"the token {self.name} is not for topic {topic}; it is for {', '.join(self.topics)}"
                )


EVERYTHING = Access("everybody", write=True)
"""The access of a server without tokens: on loopback, or to those with a certificate."""


@dataclass(frozen=True)
class Token:
    """One line of the file: an access, and the hash of its token."""

    access: Access
    sha256: str


class Tokens:
    """The tokens of a file. Threads may share them.

    Raises ServingRefused where the file can't be used.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._tokens: list[Token] = []
        self._look()

    def all(self) -> list[Token]:
        """The tokens, in the order in which they were added."""
        with self._lock:
            self._look()
            return list(self._tokens)

    def find(self, token: str) -> Access | None:
        """The access of a token, or None. Raises ServingRefused."""
        digest = _digest(token)
        found = None
        for known in self.all():
            if hmac.compare_digest(known.sha256, digest):
                found = known.access
        return found

    def _look(self) -> None:
        try:
            facts = os.stat(self.file)
        except OSError as error:
            raise _unusable(self.file, f"{error.strerror}; `commitlog token add` makes one") from None
        stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if stamp == self._stamp:
            return
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _unusable(self.file, "others may write it; chmod 600 it, and own it")
        self._tokens, self._stamp = _read(self.file), stamp


def add_token(file: Path, access: Access) -> str:
    """Makes a token, and returns it. It is not kept anywhere: the file has its hash.

    Raises IllegalArgument for a text that is no name, and for an access to nothing. Raises
    ServingRefused for a name that is taken, and for a file that can't be used.
    """
    if not _NAME.fullmatch(access.name):
        raise IllegalArgument(f"token {access.name!r}: a name has letters, digits, and any of _ . @ -, at most 100")
    if not access.topics or not (access.read or access.write):
        raise IllegalArgument(f"token {access.name}: it would be for nothing; give it topics, and let it read or write")
    token = _PREFIX + secrets.token_urlsafe(32)
    file = Path(os.path.realpath(file))  # a link stays, and the file that it points to is changed
    with _locked(file):
        known = Tokens(file).all() if file.exists() else []
        if any(one.access.name == access.name for one in known):
            raise ServingRefused(f"{file}: there is a token {access.name}; remove it first, or give the new one a name")
        _write(file, [*known, Token(access, _digest(token))])
    return token


def remove_token(file: Path, name: str) -> None:
    """Removes a token: servers refuse it from then on. Raises ServingRefused if there is none."""
    file = Path(os.path.realpath(file))
    with _locked(file):
        known = Tokens(file).all()
        left = [token for token in known if token.access.name != name]
        if len(left) == len(known):
            names = ", ".join(token.access.name for token in known) or "none"
            raise ServingRefused(f"{file}: there is no token {name}; those there are: {names}")
        _write(file, left)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keeps others from changing the file meanwhile, who could undo the change."""
    lock = Path(f"{file}.lock")
    try:
        fd = poll(lambda: try_file(lock, DISK), SYSTEM_CLOCK.monotonic_ns() + _LOCK_NS, SYSTEM_CLOCK)
    except OSError as error:
        raise _unusable(lock, _refused(error)) from None
    if fd is None:
        raise _unusable(lock, "another process holds it; end that one")
    try:
        yield
    finally:
        DISK.unlink(lock)
        DISK.close(fd)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _read(file: Path) -> list[Token]:
    try:
        data = DISK.read_named_file(file, _FILE_BYTES_MAX)
    except OSError as error:
        if shortage(error):  # the file may be a good one
            raise disk_error(error.errno or 0, f"{file}: reading the tokens") from error
        raise _unusable(file, _refused(error)) from None
    try:
        values = orjson.loads(data)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        return [_token(fields) for fields in values["tokens"]]
    except (ValueError, KeyError, TypeError) as error:
        why = f"not a file of tokens ({error!r}); put back what was there, or give a new name to `commitlog token add`"
        raise _unusable(file, why) from None


def _token(fields: dict[str, Any]) -> Token:
    access = Access(fields["name"], tuple(fields["topics"]), fields["read"], fields["write"])
    texts = (access.name, fields["sha256"], *access.topics)
    if not all(isinstance(text, str) for text in texts) or {type(access.read), type(access.write)} != {bool}:
        raise ValueError(f"a token has other fields than it should: {sorted(fields)}")
    return Token(access, fields["sha256"])


def _write(file: Path, tokens: list[Token]) -> None:
    listed = [{**asdict(token.access), "sha256": token.sha256} for token in tokens]
    try:
        DISK.replace_file(file, orjson.dumps({"format": FORMAT, "tokens": listed}, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise _unusable(file, _refused(error)) from None


def _refused(error: OSError) -> str:
    return f"{error.strerror or error}; check that it is a file in a directory of yours that has room"


def _unusable(file: Path, why: str) -> ServingRefused:
    return ServingRefused(f"tokens {file}: {why}")
