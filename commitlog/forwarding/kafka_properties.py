"""Files of Java's .properties format, which Kafka's own tools take, with librdkafka's settings.

    # client.properties
    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=forwarder
    sasl.password=…

A value may be a secret, so no error shows a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from commitlog.errors import ForwardError

OWN = {
    "bootstrap.servers": "give the brokers as kafka://HOST:PORT",
    "metadata.broker.list": "give the brokers as kafka://HOST:PORT",
    "transactional.id": "it is made of the store's id and --name",
    "enable.idempotence": "a forwarder is always idempotent",
    "acks": "a forwarder always waits for all in-sync replicas",
    "request.required.acks": "a forwarder always waits for all in-sync replicas",
    "delivery.report.only.error": "a forwarder asks for errors only",
    "isolation.level": "a forwarder reads its position with read_committed",
    "group.id": "a forwarder is in no consumer group",
}
"""What a file may not set, because exactly once depends on it, and what to do instead."""
_SECRET = re.compile(r"password|secret|token|jaas|\.pem$|oauthbearer\.config", re.IGNORECASE)
_PAIR = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_properties(path: Path) -> dict[str, str]:
    """Reads a file. Raises ForwardError, which names the line and shows no value."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ForwardError(f"{path}: can't be read ({why}); give a file of Kafka's settings") from error
    found: dict[str, str] = {}
    for number, line in _lines(text):
        pair = _PAIR.fullmatch(line)
        if pair is None:
            raise ForwardError(f"{path}, line {number}: not a setting; give name=value")
        name = _unescaped(pair[1])
        if name in OWN:
            raise ForwardError(f"{path}, line {number}: {name} can't be set: {OWN[name]}")
        found[name] = _unescaped(pair[2])
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that ends in a backslash goes on in the next."""
    whole, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        part = line.lstrip()
        if not whole and (not part or part[0] in "#!"):
            continue
        begun = begun if whole else number
        if (len(part) - len(part.rstrip("\\"))) % 2:
            whole += part[:-1]
            continue
        yield begun, whole + part
        whole = ""
    if whole:
        yield begun, whole


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _character(found[1]), text)


def _character(code: str) -> str:
    return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROLS.get(code, code)


def is_secret(name: str) -> bool:
    """Whether the value of a setting may not be shown."""
    return _SECRET.search(name) is not None


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """The text with stars in place of every secret value that is in it."""
    for name, value in properties.items():
        if value and is_secret(name):
            text = text.replace(value, "***")
    return text
