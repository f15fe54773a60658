"""A Kafka that wants TLS, a user and a password: the settings of docs/forward.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from commitlog.errors import TopicRefused
from tests.builders.hand_made import small_store
from tests.forwarding.kafka import PASSWORD, USER, running_broker
from tests.forwarding.running import command, forward

pytestmark = pytest.mark.nightly


def settings(file: Path, authority: Path, password: str = PASSWORD) -> str:
    """Writes a file for --config, and returns its path."""
    lines = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": password,
        "ssl.ca.location": str(authority),
        "compression.type": "lz4",
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(file)


def certificates(room: Path, authority: trustme.CA) -> tuple[Path, Path]:
    """The broker's certificate with its key, as Java takes it, and the authority's."""
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem, ca = room / "broker.pem", room / "ca.pem"
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)
    authority.cert_pem.write_to_path(str(ca))
    return pem, ca


def test_rights_that_are_missing_are_named(tmp_path: Path) -> None:
    """A topic that may not be written stops no other one; positions have to be read, too."""
    store = small_store(tmp_path / "store", rows=3, lanes=1, topics=("good", "bad"))
    wanted = {topic: {0: [body for _, _, body in sorted(store.rows(topic))]} for topic in ("good", "bad")}
    positions = f"commitlog-forward-kafka-{store.id}"
    with running_broker(tmp_path, rights=True) as kafka:
        for topic in ("good", "bad"):
            kafka.create(topic, 64)
        with kafka.denied("bad", "WRITE"), pytest.raises(TopicRefused, match=r"topic bad .*may not write it"):
            forward(store.path, kafka.url)
        assert {topic: kafka.values(topic) for topic in ("good", "bad")} == {"good": wanted["good"], "bad": {}}
        for operation in ("READ", "WRITE"):
            said = rf"{positions} .*may not {operation.lower()} it.*and to read it"
            with kafka.denied(positions, operation), pytest.raises(TopicRefused, match=said):
                forward(store.path, kafka.url)
        with kafka.denied("bad", "DESCRIBE_CONFIGS"):
            forward(store.path, kafka.url)
        assert {topic: kafka.values(topic) for topic in ("good", "bad")} == wanted


def test_a_kafka_with_tls_and_scram(tmp_path: Path) -> None:
    """A wrong password and a foreign authority are named, and no secret is shown."""
    pem, ca = certificates(tmp_path, trustme.CA())
    (tmp_path / "foreign").mkdir()
    _, foreign = certificates(tmp_path / "foreign", trustme.CA())
    store = small_store(tmp_path / "store", rows=5, lanes=1, topics=("orders",))
    with running_broker(tmp_path, certificate=pem) as kafka:

        def forward(config: str) -> tuple[int, str]:
            process = command(store.path, f"kafka://{kafka.secured}", "--once", "--config", config)
            output = b"".join(process.communicate(timeout=120)).decode()
            assert PASSWORD not in output
            return process.returncode, output

        code, said = forward(settings(tmp_path / "wrong", ca, "a-wrong-secret"))
        assert (code, "a-wrong-secret" in said) == (1, False), said
        assert "[TargetRefused]" in said
        code, said = forward(settings(tmp_path / "other", foreign))
        assert code == 1
        assert "[TargetUnavailable]" in said or "[TargetRefused]" in said, said
        code, said = forward(settings(tmp_path / "right", ca))
        assert code == 0, said
        assert kafka.values("orders") == {0: [body for _, _, body in sorted(store.rows("orders"))]}
