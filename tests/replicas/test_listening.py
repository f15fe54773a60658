"""Addresses that no replica can come to: `health` and `commitlog run` say so, and it heals."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

import commitlog
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import ReplicationRefused
from commitlog.replicas.greeting import ask_epoch
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from commitlog.watching.health import Reason, health
from commitlog.watching.snapshot import StoreWatch
from tests.nightly import with_nightly
from tests.replicas.scene import Scene, await_copy
from tests.waiting import wait_until


def reasons(path: Path) -> list[Reason]:
    """Why no replica can come."""
    with StoreWatch(path, only_health=True) as watch:
        return [one for one in health(watch.snapshot()).reasons if one.code == "not-listening"]


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Another program has the port."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def test_a_port_that_is_taken_is_said_and_opened_when_it_is_free(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """The store runs on. A replica can come as soon as the other program has gone."""
    with taken(scene.port):
        store = commitlog.Store.open(scene.primary, scene.config())
        (reason,) = wait_until(lambda: reasons(scene.primary), "it is said")
        wait_until(lambda: "no replica can come" in caplog.text, "the owner hears it")
    with store:
        assert f"no replica can come to 127.0.0.1:{scene.port}: [Errno 98] Address already in use" in reason.text
        wait_until(lambda: not reasons(scene.primary), "the port is open")
        with scene.follower(), store.producer() as producer:
            producer.send("orders", b"one")
            await_copy(scene)


@pytest.mark.nightly
def test_certificates_that_do_not_fit_are_said(scene: Scene) -> None:
    """Also those that were put in place of good ones while the store runs."""
    config = scene.config()
    key = Path(config["replication"]["key"])
    own, other = scene.path / "own.key", scene.certificates.make("other")[1]
    shutil.copy(other, own)
    config["replication"]["key"] = str(own)
    with commitlog.Store.open(scene.primary, config):
        (reason,) = wait_until(lambda: reasons(scene.primary), "it is said")
        assert str(own) in reason.text
        shutil.copy(key, own)
        wait_until(lambda: not reasons(scene.primary), "it has healed")
        own.unlink()
        wait_until(lambda: reasons(scene.primary), "it is said again")


def credentials(scene: Scene, **how: bool) -> Credentials:
    return Credentials(*scene.certificates.make("here", **how), scene.certificates.authority)


@pytest.mark.nightly
def test_an_expired_certificate_of_either_side_is_named(scene: Scene) -> None:
    """With the time of its end. The store says it before a replica comes, and heals by itself."""
    certificate, key = scene.path / "store.pem", scene.path / "store.key"

    def put(**how: bool) -> None:
        for made, place in zip(scene.certificates.make("some", **how), (certificate, key), strict=True):
            shutil.copy(made, place)

    put(expired=True)
    keeper = Replica(scene.copy, f"localhost:{scene.port}", credentials(scene), "copy")
    with scene.open(certificate=str(certificate), key=str(key)):
        (reason,) = wait_until(lambda: reasons(scene.primary), "it is said")
        assert f"{certificate} has expired: it was valid until 2" in reason.text
        with pytest.raises(ReplicationRefused, match="the certificate there has expired: it was valid until 2"):
            keeper.run()
        put()
        wait_until(lambda: not reasons(scene.primary), "it has healed")
        with pytest.raises(ReplicationRefused, match=r"here.pem has expired: it was valid until 2"):
            ask_epoch(f"localhost:{scene.port}", credentials(scene, expired=True), StoreDirectory(scene.primary).load())


@pytest.mark.nightly
@pytest.mark.parametrize("kind", with_nightly(["listen"], ["slave_listen"]))
def test_run_says_that_no_replica_can_come(scene: Scene, kind: str) -> None:
    """On standard error, and the store runs. `slave_listen` has a port a lane."""
    with scene.open(listen="") as store, store.producer() as producer:
        producer.send("orders", b"one")
    address = f"127.0.0.1:{scene.port}"
    wanted = scene.config()["replication"] if kind == "listen" else {kind: address}
    (scene.path / "it.toml").write_bytes(
        b"[replication]\n"
        + b"\n".join(b"%s = %s" % (key.encode(), orjson.dumps(value)) for key, value in wanted.items())
    )
    errors = scene.path / "errors"
    with taken(scene.port), errors.open("wb") as output:
        words = ["run", str(scene.primary), "--config", str(scene.path / "it.toml")]
        process = subprocess.Popen([sys.executable, "-m", "commitlog.cli", *words], stdout=output, stderr=output)
        try:
            said = f"no replica can come to {address}: [Errno 98] Address already in use"
            wait_until(lambda: said in errors.read_text(), "it is said")
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(60)
    assert "Traceback" not in errors.read_text()
