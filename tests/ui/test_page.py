"""`commitlog ui`: what a browser sees, and who may see it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import commitlog
from commitlog.disk.forwarder_files import ForwarderStatistics, write_forwarder
from commitlog.disk.replica_files import ReplicaFiles, ReplicaState
from commitlog.disk.store_directory import StoreDirectory
from commitlog.ui.looks import Looks
from commitlog.watching.bounded_server import CONNECTIONS_MAX
from tests.browser import BROWSER, browse
from tests.builders.hand_made import small_store
from tests.command_line import run
from tests.waiting import wait_until

PAGE = Path(commitlog.__file__).parent / "ui/page"
SMALL = {"store": {"segment_bytes": 1 << 16}}

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """The address that `commitlog ui` prints; the command ends by SIGTERM, without an error."""
    command = [sys.executable, "-m", "commitlog.cli", "ui", *map(str, paths)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)
        assert (process.returncode, said[1]) == (0, "")
    finally:
        process.kill()
        process.communicate()


def answer(address: str, path: str, **headers: str) -> HTTPResponse:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def cookie(address: str) -> str:
    """What a browser keeps after it has opened the address."""
    welcome = answer(address, f"/?{urlsplit(address).query}")
    assert (welcome.status, welcome.getheader("Location")) == (303, "/")
    said = welcome.getheader("Set-Cookie") or ""
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    return said.partition(";")[0]


def ask(address: str, path: str) -> Any:
    return json.loads(answer(address, path, Cookie=cookie(address)).body)  # type: ignore[attr-defined]


def lines(address: str, query: str) -> list[Any]:
    """The answer about messages: an object a line, or the error in place of it."""
    body = answer(address, f"/api/messages?{query}", Cookie=cookie(address)).body  # type: ignore[attr-defined]
    return [json.loads(line) for line in body.splitlines()]


def found(address: str, query: str) -> list[Any]:
    """The messages of an answer that came to its end."""
    *some, last = lines(address, query)
    assert last["end"], last
    return [line["message"] for line in some if "message" in line]


def send(store: commitlog.Store, topic: str, values: list[bytes]) -> None:
    with store.producer() as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, key=str(number))
        producer.flush(timeout=60)


def test_only_who_has_the_address_gets_in(tmp_path: Path) -> None:
    """Another user of the machine, a page of another site, and a foreign host name get nothing."""
    with serving(small_store(tmp_path / "store").path) as address:
        for path in ("/", "/page.js", "/api/looks", "/api/messages?topic=t", "/?token=wrong"):
            refused = answer(address, path)
            assert refused.status == 401
            assert b"commitlog ui" in refused.body  # type: ignore[attr-defined]
            assert answer(address, path, Cookie="commitlog-1=x; commitlog=y").status == 401
        ours = cookie(address)
        assert answer(address, "/", Cookie=ours).status == 200
        for foreign in ('x={"a": 1}', "x=a b", "a@b=1", "commitlog-1=other", "=;="):
            assert answer(address, "/", Cookie=f"{foreign}; {ours}; {foreign}").status == 200, foreign
        with socket.create_connection((urlsplit(address).hostname, urlsplit(address).port)) as odd:
            odd.sendall(f"GET http://[ HTTP/1.1\r\nHost: {urlsplit(address).netloc}\r\n\r\n".encode())
            assert odd.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert answer(address, "/", Cookie=ours, Host="evil.example").status == 403
        assert answer(address, "/../../etc/passwd", Cookie=ours).status == 404
        policy = answer(address, "/", Cookie=ours).getheader("Content-Security-Policy") or ""
        assert "default-src 'self'" in policy


def failures(looks: Looks, seen: int) -> list[str]:
    return [look["error"] for look in looks.after(seen, 60) if "error" in look]


def test_looking_goes_on_after_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page is told each time; the log has it once, with its traceback, until it is another."""
    commitlog.Store.open(tmp_path / "store", SMALL).close()
    monkeypatch.setattr("commitlog.ui.looks.INTERVAL_SECONDS", 0.01)

    def broken(_snapshot: object) -> None:
        raise ZeroDivisionError("a planted mistake")

    with Looks(tmp_path / "store") as looks:
        seen = wait_until(lambda: looks.after(0, 60), "a first look")[-1]["number"]
        with monkeypatch.context() as changed:
            changed.setattr("commitlog.ui.looks.health", broken)
            wait_until(lambda: len(failures(looks, seen)) > 3, "looks that fail")
        wait_until(lambda: "error" not in looks.after(0, 60)[-1], "a look at the store")
        said = "looking failed, and goes on: a planted mistake [ZeroDivisionError]; the log of `commitlog ui` has more"
        assert set(failures(looks, seen)) == {said}
    (entry,) = caplog.records
    assert entry.exc_info
    assert "looking at the store has failed" in entry.message


@pytest.mark.parametrize("host", ["0.0.0.0:0", "192.0.2.1:0", "[::]:0", "example.com:0"])
def test_other_machines_are_refused(tmp_path: Path, host: str) -> None:
    done = run("ui", small_store(tmp_path / "store").path, "--listen", host)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"127.0.0.1" in done.stderr


def test_a_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("ui", small_store(tmp_path / "store").path, "--listen", place)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"[PageError]" in done.stderr


VALUES = [b"zero", b"\xff\x00", b"x" + "é".encode() * 4000, b"three"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page of a store that runs, with VALUES in the topic `orders`."""
    with commitlog.Store.open(tmp_path_factory.mktemp("served") / "store", SMALL) as store:
        send(store, "orders", VALUES)
        with serving(store.path) as address:
            yield address


def test_looks_have_what_the_page_shows(served: str) -> None:
    first = ask(served, "/api/looks")["looks"]
    later = ask(served, f"/api/looks?after={first[-1]['number']}")["looks"]
    look = first[-1]
    assert (look["store"]["state"], look["health"]["status"]) == ("running", "good")
    assert [(topic["topic"], topic["messages"]) for topic in look["topics"]] == [("orders", 4)]
    assert {stage["stage"] for stage in look["stages"]} == {"committer", "flusher", "allocator", "dispatcher"}
    assert later[0]["number"] == look["number"] + 1


def add_replica_and_forwarder(store: StoreDirectory) -> None:
    replica = ReplicaState("at-db2", "replica", store.load().id, acknowledged={0: 10}, behind_bytes=2_000)
    ReplicaFiles(store).save(replica)
    write_forwarder(store, ForwarderStatistics("to-lake", "kafka:9092", os.getpid(), last_error="no route"))


def test_looks_have_replicas_and_forwarders(tmp_path: Path) -> None:
    store = StoreDirectory(small_store(tmp_path / "store").path)
    add_replica_and_forwarder(store)
    with serving(store.path) as address:
        look = ask(address, "/api/looks")["looks"][-1]
    (replica,), (forwarder,) = look["replicas"], look["forwarders"]
    assert (replica["name"], replica["lanes"], replica["in_sync"], replica["behind_bytes"]) == ("at-db2", 1, 0, 2_000)
    assert (forwarder["name"], forwarder["last_error"]) == ("to-lake", "no route")


def test_looks_say_that_the_store_is_gone_until_it_is_back(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store").path
    with serving(store) as address:

        def newest() -> Any:
            return ask(address, "/api/looks")["looks"][-1]

        store.rename(tmp_path / "elsewhere")
        gone = wait_until(lambda: newest().get("error"), "a look that fails")
        (tmp_path / "elsewhere").rename(store)
        wait_until(lambda: "error" not in newest(), "a look at the store")
    assert gone.endswith("[StoreNotFound]")


@needs_browser
def test_a_browser_shows_replicas_and_forwarders_where_there_are_any(tmp_path: Path) -> None:
    store = StoreDirectory(small_store(tmp_path / "store").path)
    hidden = "document.getElementById('replicas').parentElement.hidden"
    with serving(store.path) as address, browse(address, tmp_path / "profile") as page:
        page.see("#lanes", "uncommitted")
        assert page.ask(hidden)
        add_replica_and_forwarder(store)
        assert "2 kB" in page.see("#replicas", "at-db2")
        assert "no route" in page.see("#forwarders", "to-lake")
        assert not page.ask(hidden)
        assert page.complaints == []


def test_messages_from_an_offset_or_the_end(served: str) -> None:
    """Bytes that are no text come as base64, a long value is cut before a half character."""
    everything = found(served, "topic=orders")
    last = found(served, f"topic=orders&start={quote('last 1')}")
    second = found(served, "topic=orders&start=1&count=1&partition=0")
    (unknown,) = lines(served, "topic=pears")
    (bad,) = lines(served, "topic=orders&start=nonsense")
    (odd,) = lines(served, "topic=orders&count=-5")
    assert [message["offset"] for message in everything] == [0, 1, 2, 3]
    assert everything[0]["value"] == "zero"
    assert everything[1]["value_base64"] == "/wA="
    assert (everything[2]["value"], everything[2]["bytes"]) == ("x" + "é" * 2047, 8001)
    assert [message["cut"] for message in everything] == [[], [], ["value"], []]
    whole = ask(served, "/api/message?topic=orders&partition=0&offset=2")["message"]
    assert (whole["value"].encode(), whole["cut"]) == (VALUES[2], [])
    assert ask(served, "/api/message?topic=orders&partition=0&offset=9")["name"] == "OffsetOutOfRange"
    assert [message["value"] for message in last] == ["three"]
    assert [message["key"] for message in second] == ["1"]
    assert (unknown["name"], bad["name"], odd["name"]) == ("UnknownTopic", "BadStart", "IllegalArgument")


def test_messages_with_a_text_in_key_or_value(served: str) -> None:
    """The case of ASCII does not count; the last line counts what was looked at."""
    assert [message["offset"] for message in found(served, "topic=orders&search=ZeR")] == [0]
    assert [message["offset"] for message in found(served, "topic=orders&search=3")] == [3]
    assert lines(served, "topic=orders&search=nowhere") == [{"looked_at": 4, "found": 0, "end": True}]


def test_a_text_is_found_as_it_stands(tmp_path: Path) -> None:
    """Also where it begins with a letter that ASCII has not: in a key, a value and a row."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        store.create_topic("sales", schema="fruit STRING")
        with store.producer() as producer:
            producer.send("orders", "Äpfel".encode(), key="ÖL 7")
            producer.send_rows("sales", [{"fruit": "Äpfel"}])
            producer.flush(timeout=60)
        with serving(store.path) as address:
            for topic, text in (("orders", "ÄPF"), ("orders", "Öl"), ("sales", "Äpf")):
                assert len(found(address, f"topic={topic}&search={quote(text)}")) == 1, text


def test_rows_of_a_typed_topic(tmp_path: Path) -> None:
    """Rows are JSON texts, so that no digit is lost. A search takes single rows."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        store.create_topic("sales", schema="id BIGINT NOT NULL, fruit STRING")
        with store.producer() as producer:
            rows = [{"id": 2**53 + 1 + number, "fruit": f"apple {number}"} for number in range(30)]
            producer.send_rows("sales", [*rows, {"id": 1, "fruit": "x" * 5000}], key="all")
            producer.flush(timeout=60)
        with serving(store.path) as address:
            (first,) = found(address, "topic=sales")
            (some,) = found(address, "topic=sales&search=apple%2029")
            (large,) = found(address, "topic=sales&search=xxx")
            (by_key,) = found(address, "topic=sales&search=ALL")
            whole = ask(address, "/api/message?topic=sales&partition=0&offset=0&search=xxx")["message"]
    assert (first["row_count"], len(first["rows"]), first["headers"]) == (31, 20, {})
    assert first["rows"][0] == '{"id":9007199254740993,"fruit":"apple 0"}'
    assert some["rows"] == ['{"id":9007199254741022,"fruit":"apple 29"}']
    assert by_key["row_count"] == 31
    assert (len(large["rows"][0]), large["cut"]) == (len('{"id":1,"fruit":""}') + 4096, ["0 fruit"])
    assert (len(whole["rows"][0]), whole["cut"]) == (len('{"id":1,"fruit":""}') + 5000, [])


@pytest.mark.nightly
def test_an_answer_that_follows_has_what_comes_later(tmp_path: Path) -> None:
    with commitlog.Store.open(tmp_path / "store", SMALL) as store, store.producer() as producer:
        producer.send("orders", b"one")
        producer.flush(timeout=60)
        with serving(store.path) as address:
            connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
            headers = {"Cookie": cookie(address)}
            connection.request("GET", "/api/messages?topic=orders&follow=yes", headers=headers)
            with connection.getresponse() as response:

                def next_value() -> str:
                    while "message" not in (line := json.loads(response.readline())):
                        pass
                    return str(line["message"]["value"])

                assert next_value() == "one"
                producer.send("orders", b"two")
                assert next_value() == "two"
            connection.close()


@pytest.mark.nightly
def test_several_stores_on_one_page(tmp_path: Path) -> None:
    """Each has a name: that of its directory, or its path where two have the same one."""
    stores = [small_store(tmp_path / name, rows=rows).path for rows, name in enumerate(("a/x", "b/x", "y"), start=1)]
    names = [str(stores[0]), str(stores[1]), "y"]
    with serving(*stores) as address:
        said = ask(address, "/api/looks?store=y")
        assert [(store["name"], store["path"]) for store in said["stores"]] == [
            *zip(names, map(str, stores), strict=True)
        ]
        assert said["looks"][-1]["store"]["path"] == str(stores[2])
        assert said["address"] == address
        wait_until(lambda: {s["status"] for s in ask(address, "/api/looks")["stores"]} == {"down"}, "a look at each")
        topic = said["looks"][-1]["topics"][0]
        counts = [len(found(address, f"topic={topic['topic']}&store={quote(name)}")) for name in names]
        assert counts == sorted({*counts})
        assert "there are" in ask(address, "/api/looks?store=z")["error"]


def test_a_client_that_says_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Nor do many of them, or garbage."""
    with serving(small_store(tmp_path / "store").path) as address:
        place = (urlsplit(address).hostname, urlsplit(address).port)
        idle = [socket.create_connection(place) for _ in range(CONNECTIONS_MAX + 8)]
        with socket.create_connection(place) as odd:
            odd.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
            assert odd.recv(1000)
        assert ask(address, "/api/looks")["looks"]
        for connection in idle:
            connection.close()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    files = list(PAGE.iterdir())
    assert len(files) > 3
    for file in files:
        assert not re.search(r"https?://|//cdn|@import", file.read_text()), file.name


@needs_browser
def test_a_browser_shows_the_store_and_its_messages(tmp_path: Path) -> None:
    """Tables, the messages of a topic, the next ones; a value that looks like HTML stays a text."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        send(store, "orders", [f"<b>{number}</b>".encode() for number in range(60)])
        with commitlog.Reader(store.path, "orders", name="billing") as reader:
            reader.commit(next(reader))
        with (
            serving(store.path) as address,
            browse(f"{address}#topic=orders&start=0&partition=0&count=50", tmp_path / "profile") as page,
        ):
            page.see("#status", "good")
            page.see("#lanes", "uncommitted")
            page.see("#stages", "flusher")
            page.see("#topics", "orders")
            assert "59" in page.see("#readers", "billing")
            assert "<b>49</b>" in page.see("#found", "<b>0</b>")
            page.ask("document.getElementById('next').click()")
            page.see("#found", "<b>59</b>")
            assert page.ask("document.querySelectorAll('#found b').length") == 0
            page.ask("document.querySelector('#topics a').click()")
            page.see("#found", "<b>10</b>")
            page.ask("document.getElementById('to-overview').click()")
            drawn = (
                "document.getElementById('plot-rate').getContext('2d').getImageData(0, 0, 300, 100).data.some(Boolean)"
            )
            wait_until(lambda: page.ask(drawn), "the plot")
            assert page.complaints == []


@needs_browser
def test_a_browser_shows_what_is_wrong(tmp_path: Path) -> None:
    """A store that is killed, and a server that ends."""
    with commitlog.Store.open(tmp_path / "store", SMALL) as store:
        with serving(store.path) as address, browse(address, tmp_path / "profile") as page:
            page.see("#status", "good")
            os.kill(int((store.path / "lock").read_text()), signal.SIGSTOP)
            page.see("#status", "down")
            os.kill(int((store.path / "lock").read_text()), signal.SIGCONT)
            page.see("#status", "good")
        with serving(store.path) as address, browse(address, tmp_path / "another") as page:
            page.see("#status", "good")
            page.ask("fetch = () => Promise.reject(new Error('gone'))")
            page.see("#status", "not connected")
            page.see("#problems", "gone")


@pytest.mark.nightly
def test_a_page_whose_address_can_not_be_printed_ends(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", rows=1)
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "commitlog.cli", "ui", str(store.path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
