"""Nobody is given bytes of messages that he may not see, nor those of an earlier use of a buffer.

The secret messages have a mark. It is looked for in everything that leaves the store.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import commitlog
from commitlog.serving.access import Access, add_token
from tests import command_line
from tests.nightly import with_nightly
from tests.serving.asking import server_of

SEGMENT_BYTES, BUFFERS = 1 << 16, 3
SECRET, OPEN = b"S3CR3T-MARK!", b"OPEN-MARK-42"
SCHEMA = "id BIGINT, name STRING, tags ARRAY<STRING>"


@contextmanager
def recorded(port: int) -> Iterator[tuple[int, bytearray]]:
    """A port that leads to another one of this machine, and the bytes that come back from there."""
    heard = bytearray()
    ended = threading.Event()

    def carry(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            ends = {near: far, far: near}
            while not ended.is_set():
                for one in select.select(list(ends), [], [], 0.05)[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    if one is far:
                        heard.extend(data)
                    ends[one].sendall(data)

    def accept() -> None:
        while not ended.is_set():
            if select.select([listener], [], [], 0.05)[0]:
                carriers.append(threading.Thread(target=carry, args=(listener.accept()[0],)))
                carriers[-1].start()

    carriers: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1], heard
        finally:
            ended.set()
            accepting.join()
            for carrier in carriers:
                carrier.join()


@pytest.fixture(scope="module", params=with_nightly(["pool"], ["direct"]))
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A stopped store of one lane, and the log offset behind its last secret message.

    Secret and open messages stand side by side and fill each buffer several times. At the end, open
    ones that leave much room at the end of a segment use all buffers again.
    """
    path = tmp_path_factory.mktemp(request.param) / "store"
    settings = {"segment_bytes": SEGMENT_BYTES, "buffers_per_lane": BUFFERS, "write_path": request.param}
    with commitlog.Store.open(path, {"store": settings}) as store:
        for topic in ("secret-rows", "open-rows"):
            store.create_topic(topic, SCHEMA)
        with store.producer() as producer:
            for number in range(60):
                for kind, mark in (("secret", SECRET), ("open", OPEN)):
                    text = mark.decode()
                    producer.send(kind, mark * 250, key=text, headers={"mark": text})
                    rows = [{"id": number, "name": text * 30, "tags": [text] * 5} for _ in range(4)]
                    producer.send_rows(f"{kind}-rows", rows)
            last = producer.send("open", OPEN)
            behind = last.end
            for _ in range(16 * BUFFERS):
                last = producer.send("open", OPEN * 1100)
            last.wait("flushed", 60)
    return path, behind


def unseen(path: Path, behind: int) -> list[str]:
    """The segment files that begin behind an offset of the log, and have the secret mark."""
    files = sorted((path / "lanes/0/commitlog").iterdir())
    last = [file for file in files if int(file.name) >= behind]
    assert len(last) > BUFFERS
    assert any(SECRET in file.read_bytes() for file in files if file not in last), "the mark is to be found"
    return [file.name for file in last if SECRET in file.read_bytes()]


def test_a_buffer_that_is_used_again_shows_nothing_of_before(mixed: tuple[Path, int], tmp_path: Path) -> None:
    """Neither behind the BLANK of a full segment, nor behind the last record; nor in a backup."""
    path, behind = mixed
    assert unseen(path, behind) == []
    assert command_line.run("backup", path, tmp_path / "backup").returncode == 0
    assert unseen(tmp_path / "backup", behind) == []


def test_a_token_for_one_topic_gets_no_byte_of_another(mixed: tuple[Path, int], tmp_path: Path) -> None:
    """All that the server sends to it is listened to: values, rows, fields of JSON and counts."""
    path, _ = mixed
    tokens = tmp_path / "tokens.json"
    token = add_token(tokens, Access("one", topics=("open*",)))
    with ExitStack() as opened:
        server = opened.enter_context(server_of([path], tokens=tokens))
        port, heard = opened.enter_context(recorded(server.ports[0]))
        url = f"commitlog://127.0.0.1:{port}/store"
        values = commitlog.read_arrow(url, "open", token=token).read_all()
        rows = commitlog.read_arrow(url, "open-rows", token=token).read_all()
    assert values.num_rows == 61 + 16 * BUFFERS
    assert rows.num_rows == 60 * 4
    assert heard.count(OPEN) > 60 * 250, "what is sent is neither packed nor encrypted"
    assert heard.count(SECRET) == 0
