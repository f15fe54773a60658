"""An old primary that comes back: what only it has is set aside, all of it, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import commitlog
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.inspecting.verify import verify_store
from commitlog.replicas.promotion import promote
from commitlog.replicas.rejoining import rejoin
from commitlog.replicas.tls import Credentials
from tests.ports import free_port
from tests.replicas.scene import Scene, await_copy


def values_of(path: Path, *, ignore_corrupt: bool = False) -> Counter[bytes]:
    with commitlog.Reader(path, ignore_corrupt=ignore_corrupt) as reader:
        return Counter(bytes(message.value) for message in reader)


def send(store: commitlog.Store, what: str, count: int) -> list[bytes]:
    """Sends messages of several topics to two lanes, over segments."""
    values = [b"%s %d " % (what.encode(), number) * (10 + number % 40) for number in range(count)]
    with store.producer() as one, store.producer() as other:
        for number, value in enumerate(values):
            (one, other)[number % 2].send(f"t{number % 3}", value)
        one.flush()
        other.flush()
    return values


@contextmanager
def copied(scene: Scene) -> Iterator[list[bytes]]:
    """A primary that runs, and a copy of all of it whose `commitlog replica` was killed."""
    with scene.open() as store:
        with scene.replica() as command:
            values = send_to_both(store)
            await_copy(scene)
            command.kill()
        yield values


def send_to_both(store: commitlog.Store) -> list[bytes]:
    return send(store, "both", 400)


@contextmanager
def promoted(scene: Scene) -> Iterator[Scene]:
    """The old primary has stopped. Its copy was promoted, and runs, at the port of this scene."""
    scene.copied(send_to_both)
    promote(scene.copy)
    port = free_port()
    with scene.open(scene.copy, listen=f"127.0.0.1:{port}") as store:
        send(store, "new", 10)
        yield Scene(scene.path, scene.certificates, scene.templates, port)


def command(scene: Scene, path: Path) -> list[str]:
    return ["rejoin", *scene.arguments(path), "--name", "old"]


def rejoined(scene: Scene, path: Path) -> int:
    """Lets an old primary rejoin. Returns the number of messages that were set aside."""
    source, certificate, key = f"localhost:{scene.port}", *scene.certificates.make("of-old")
    credentials = Credentials(certificate, key, scene.certificates.authority)
    return sum(lane.messages for lane in rejoin(path, source, credentials, "old"))


def quarantined(path: Path) -> bytes:
    """All bytes that were taken out of the logs."""
    files = sorted(path.glob("lanes/*/quarantine/*"))
    return b"".join(file.read_bytes() for file in files if file.suffix == ".bin" or "segment-" in file.name)


def check_rejoined(path: Path, common: Counter[bytes], surplus: list[bytes]) -> None:
    assert values_of(path) == common
    assert verify_store(path).good
    assert load_mark(StoreDirectory(path)) is not None
    kept = quarantined(path)
    assert [kept.count(value) for value in surplus] == [1] * len(surplus)
