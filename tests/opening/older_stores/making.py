"""Makes the stores of a version, which later versions must open.

`python -m tests.opening.older_stores.making` writes VERSION.tar.xz beside this file: four stores,
and `shown.json`, what is read from each. It is run before a release. What a released version has
made is never made again.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import commitlog
from tests.builders.scrape import halted
from tests.command_line import run
from tests.replicas.scene import Scene, await_copy
from tests.replicas.test_what_is_copied import files_of
from tests.serving.asking import Certificates
from tests.waiting import wait_until

HERE = Path(__file__).parent
CONFIG = {"store": {"segment_bytes": 1 << 16}, "retention": {"reserved_hours": 0}}
TOPICS = ("orders", "blobs", "cut")
GROWN = "id BIGINT NOT NULL, fruit STRING, price DOUBLE"


def fill(store: commitlog.Store) -> None:
    """Messages of all kinds in two lanes and several segments; a topic with two schemas."""
    with store.producer() as one, store.producer() as other:
        for number in range(20):
            producer = (one, other)[number % 2]
            producer.send(
                "orders", f"order {number}".encode(), key=str(number), tags="new", headers={"trace": f"t{number}"}
            )
        other.send_batch("orders", [b"first of a batch", b"second"])
        one.send("blobs", bytes(range(256)))
        one.send("blobs", b"")
        for number in range(10):
            one.send("blobs", bytes([number]) * 15_000)
        for number in range(4):
            one.send("cut", f"cut {number}".encode())
        store.create_topic("sales", "id INT NOT NULL, fruit STRING")
        one.send_rows("sales", [{"id": 1, "fruit": "apple"}, {"id": 2, "fruit": None}])
        store.create_topic("sales", GROWN, evolve=True)
        other.send_rows("sales", [{"id": 1 << 40, "fruit": "pear", "price": 0.5}])
        one.flush()
        other.flush()


def shown(path: Path) -> dict[str, Any]:
    """All that readers see: messages, rows, and what the reader `billing` is given next."""
    messages = {}
    for topic in TOPICS:
        with commitlog.Reader(path, topic) as reader:
            found = [json.loads(message.to_json()) for message in reader]
        messages[topic] = sorted(found, key=lambda message: (message["partition"], message["offset"]))
    rows = commitlog.read(path, "sales").to_arrow().select(["id", "fruit", "price"]).to_pylist()
    with commitlog.Reader(path, "orders", name="billing") as reader:
        rest = sorted([message.partition, message.offset] for message in reader)
    return {"messages": messages, "rows": sorted(rows, key=lambda row: row["id"]), "rest": rest}


def make(directory: Path) -> None:
    """Four stores: stopped, cut off by a power loss while it ran, a backup, and a replica.

    With what is read from each.
    """
    stopped = directory / "stopped"
    with commitlog.Store.open(stopped, CONFIG) as store:
        fill(store)
        with commitlog.Reader(stopped, "orders", name="billing") as reader:
            messages = iter(reader)
            for _ in range(7):
                reader.commit(next(messages))
        trimmed = run("topics", stopped, "--trim", "cut", "--before", "last 2", "--yes")
        assert trimmed.returncode == 0, trimmed.stderr
        with halted(stopped):
            shutil.copytree(stopped, directory / "cut-off", ignore=shutil.ignore_patterns("*.sock"))
    commitlog.backup(stopped, directory / "backup")
    with tempfile.TemporaryDirectory() as name:
        replicate(stopped, directory / "replica", Scene(Path(name), Certificates(Path(name)), Path(name)))
    (directory / "shown.json").write_text(json.dumps(shown(stopped)))


def replicate(stopped: Path, copy: Path, scene: Scene) -> None:
    """Makes a replica's copy of a store; the store itself stays as it is."""
    shutil.copytree(stopped, scene.primary)
    with scene.open(), scene.follower(copy):
        await_copy(scene, copy)
        wait_until(lambda: files_of(copy) == files_of(stopped), "the copy has the schemas, the reader and the trim")


def without_this_machine(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves the logs out, which name its paths, and the owner."""
    if "logs" in Path(member.name).parts:
        return None
    member.uname = member.gname = ""
    member.uid = member.gid = 0
    return member


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        with tarfile.open(HERE / f"{commitlog.__version__}.tar.xz", "w:xz") as archive:
            for path in sorted(Path(name).iterdir()):
                archive.add(path, arcname=path.name, filter=without_this_machine)


if __name__ == "__main__":
    main()
