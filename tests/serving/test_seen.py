"""What clients use is seen beside the store: in `stat`, `top`, the metrics."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from commitlog.cli.app import app
from commitlog.disk.server_files import ClientTraffic, ServerFile, ServerStatistics, running_servers
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import AccessDenied
from commitlog.serving.access import Access, add_token
from commitlog.watching.server_metrics import SERVER_METRICS
from commitlog.watching.snapshot import StoreWatch
from tests.builders.hand_made import HandMadeStore, small_store
from tests.serving.asking import address_of, client_of, server_of
from tests.serving.test_ends import command
from tests.waiting import wait_until


def shown(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def clients(store: HandMadeStore) -> dict[str, ClientTraffic]:
    (server,) = running_servers(store.directory)
    return dict(server.clients)


def test_a_client_is_seen_by_its_name(tmp_path: Path) -> None:
    """Its rows, bytes, calls and errors, all processes together, and its open streams."""
    store, tokens = small_store(tmp_path / "store"), tmp_path / "tokens.json"
    token = add_token(tokens, Access("billing", ("orders",)))
    with server_of([store.path], tokens=tokens, processes=2) as server:
        address = address_of(server, token=token)
        assert clients(store) == {}
        with client_of(address) as client:
            ticket = client.ticket()
            for port in server.ports:
                assert sum(batch.num_rows for batch, _ in client.connection.read(ticket, port)) == 200
            with pytest.raises(AccessDenied):
                client.rows(ticket.replace(b'"orders"', b'"other"'))

        def counts() -> tuple[int, ...]:
            use = clients(store).get("billing")
            return (use.rows_read, use.errors, use.streams, use.calls) if use else ()

        wait_until(lambda: counts() == (400, 1, 0, 4), "all that it has done")
        use = clients(store)["billing"]
        assert use.rows_written == 0
        assert use.bytes_read > 400
        url = f"commitlog://127.0.0.1:{server.ports[0]}/store"
        assert f"server {url}: pid " in shown("stat", store.path)
        assert "    billing: 0 streams open, 4 calls, read 400 rows" in shown("stat", store.path)
        (of_server,) = orjson.loads(shown("stat", store.path, "--json"))["servers"]
        assert of_server["address"] == url
        assert [(one["client"], one["rows_read"]) for one in of_server["clients"]] == [("billing", 400)]
        assert "client  streams  calls  rows read" in shown("top", store.path, "--plain", "--interval", "10ms")
        with StoreWatch(store.path) as watch:
            samples = {metric.name: dict(metric.samples(watch.snapshot())) for metric in SERVER_METRICS}
        assert samples["commitlog_server_read_rows_total"] == {(url, "billing"): 400}
        assert samples["commitlog_server_errors_total"] == {(url, "billing"): 1}
    assert list(store.directory.servers_directory.iterdir()) == []
    assert "server" not in shown("stat", store.path)


@pytest.mark.nightly
def test_an_open_stream_is_seen(tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "store", segment_bytes=1 << 20)
    for _ in range(20):
        store.lane(0).append("orders", bytes(1 << 19))
    store.publish()
    with server_of([store.path]) as server, client_of(address_of(server)) as client:
        asked = orjson.loads(client.ticket())
        asked["slices"] *= 20
        stream = client.batches(orjson.dumps(asked))
        next(stream)
        wait_until(lambda: clients(store).get("everybody", ClientTraffic()).streams == 1)
        stream.close()  # type: ignore[attr-defined]
        del stream  # Python 3.12.3 keeps what a closed generator has
        wait_until(lambda: clients(store)["everybody"].streams == 0)


def test_a_server_is_seen_in_the_store_that_is_there_now(tmp_path: Path) -> None:
    """Such as a backup that was put in the place of the store, which shows no server any more."""
    store = small_store(tmp_path / "store")
    shutil.copytree(store.path, tmp_path / "copy")
    with server_of([store.path]) as server, client_of(address_of(server)) as client:
        assert len(running_servers(store.directory)) == 1
        store.path.rename(tmp_path / "old")
        (tmp_path / "copy").rename(store.path)
        assert sorted(client.rows(client.ticket())) == store.rows("orders")

        def rows_read() -> int:
            return sum(use.rows_read for one in running_servers(store.directory) for use in one.clients.values())

        wait_until(lambda: rows_read() == 200, "the server in the store that is there now")
        assert running_servers(StoreDirectory(tmp_path / "old")) == []
    assert list(store.directory.servers_directory.iterdir()) == []


@pytest.mark.nightly
def test_a_server_that_was_killed_is_not_seen(tmp_path: Path) -> None:
    """The next one removes what it has left."""
    store = small_store(tmp_path / "store")
    with command(str(store.path)) as (process, urls):
        assert [server.address for server in running_servers(store.directory)] == urls
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert running_servers(store.directory) == []
    left = {path.name for path in store.directory.servers_directory.iterdir()}
    assert len(left) == 2
    file = ServerFile(store.directory)
    assert not left & {path.name for path in store.directory.servers_directory.iterdir()}
    file.close()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"address": "x", "pid": 1, "clients": {"a": {"calls": "many"}}}'])
def test_a_file_with_nonsense_is_passed_over(content: bytes, tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    file = ServerFile(store.directory)
    file.write(ServerStatistics("commitlog://h/store", 1, {}))
    assert len(running_servers(store.directory)) == 1
    (written,) = store.directory.servers_directory.glob("*.json")
    written.write_bytes(content)
    assert running_servers(store.directory) == []
    file.close()


def test_backup_and_verify_pass_over_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    with server_of([store.path]):
        before = shown("verify", store.path)
        shown("backup", store.path, tmp_path / "backup")
    assert shown("verify", store.path) == before
    assert not StoreDirectory(tmp_path / "backup").servers_directory.exists()


@pytest.mark.nightly
def test_a_store_where_nothing_may_be_written_is_served(tmp_path: Path) -> None:
    """Such as a RocketMQ store root, and one whose directory is removed meanwhile."""
    store = small_store(tmp_path / "store", lanes=1)
    root = store.path / "lanes" / "0"
    with server_of([f"store={root}"]) as server, client_of(address_of(server)) as client:
        assert sorted(client.rows(client.ticket())) == store.rows("orders")
        assert not (root / "servers").exists()
    gone = small_store(tmp_path / "gone")
    with server_of([gone.path]):
        shutil.rmtree(gone.path)
    assert not gone.path.exists()
