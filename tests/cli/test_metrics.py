"""`commitlog metrics`: printed, in a file for node_exporter, and served to Prometheus."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from typer.testing import CliRunner

from commitlog.cli.app import app
from commitlog.watching.bounded_server import CONNECTIONS_MAX
from tests.builders.hand_made import HandMadeStore
from tests.builders.scrape import OPENMETRICS, Scrape, read_openmetrics, read_prometheus
from tests.command_line import run
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> HandMadeStore:
    made = HandMadeStore(tmp_path / "store")
    made.lane(0).append("apples", b"x")
    made.publish()
    return made


@contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`commitlog metrics --listen`, ready, and its address."""
    command = [sys.executable, "-m", "commitlog.cli", "metrics", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stderr
    try:
        line = process.stdout.readline()
        assert line.startswith("serving http://"), process.stderr.read()
        yield process, line.split()[1].rstrip(";")
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
        process.stderr.close()


def get(address: str, accept: str = "") -> tuple[str, str]:
    """The content type and the text of a scrape. It is asked for packed, as Prometheus does."""
    headers = {"Accept-Encoding": "gzip"} | ({"Accept": accept} if accept else {})
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        return answer.headers["Content-Type"], gzip.decompress(answer.read()).decode()


def end_offset(scrape: Scrape) -> float:
    return scrape.value("commitlog_topic_end_offset", topic="apples", lane="0")


def test_it_prints_openmetrics(store: HandMadeStore) -> None:
    done = CliRunner().invoke(app, ["metrics", str(store.path)])
    assert done.exit_code == 0
    assert done.stdout.endswith("# EOF\n")
    assert end_offset(read_openmetrics(done.stdout)) == 1


def test_stores_from_the_variable(store: HandMadeStore, tmp_path: Path) -> None:
    """Several are parted as in PATH."""
    HandMadeStore(tmp_path / "other").publish()
    paths = [str(store.path), str(tmp_path / "other")]
    done = CliRunner().invoke(app, ["metrics"], env={"COMMITLOG_STORE": os.pathsep.join(paths)})
    found = read_openmetrics(done.stdout)
    assert [found.value("commitlog_up", store=path) for path in paths] == [1, 1]


def test_a_file_for_node_exporter(store: HandMadeStore, tmp_path: Path) -> None:
    """It replaces the file at once, in the older format, and leaves nothing else there."""
    directory = tmp_path / "textfile"
    directory.mkdir()
    file = directory / "commitlog.prom"
    file.write_text("old")
    done = run("metrics", store.path, "--textfile", file)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert os.listdir(directory) == [file.name]
    assert end_offset(read_prometheus(file.read_text())) == 1
    assert "# EOF" not in file.read_text()
    assert file.stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    old = os.umask(0o022)
    os.umask(old)
    return old


def test_a_store_that_is_not_there(store: HandMadeStore, tmp_path: Path) -> None:
    """The others are printed all the same; then comes the error, in one line."""
    done = run("metrics", store.path, tmp_path / "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith(b"commitlog: ")
    assert done.stderr.endswith(b"[StoreNotFound]\n")
    assert done.stderr.count(b"\n") == 1
    found = read_openmetrics(done.stdout.decode())
    assert found.value("commitlog_up", store=str(tmp_path / "nowhere")) == 0
    assert end_offset(found) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "nine"], "HOST:PORT"),
        (["--listen", "127.0.0.1:65536"], "HOST:PORT"),
        (["--textfile", "metrics.txt"], "end in .prom"),
        (["--textfile", "/nowhere/metrics.prom"], "No such file or directory"),
        (["--textfile", "metrics.prom", "--listen", "9877"], "one of them"),
    ],
)
def test_wrong_options(store: HandMadeStore, options: list[str], reason: str) -> None:
    """One line that says what is wrong, and what would be right."""
    done = run("metrics", store.path, *options)
    assert (done.returncode, done.stdout) == (2, b"")
    assert reason in done.stderr.decode()
    assert done.stderr.endswith(b"[IllegalArgument]\n")
    assert done.stderr.count(b"\n") == 1


def test_it_serves_both_formats(store: HandMadeStore) -> None:
    """What the scraper asks for; each scrape is of that moment; SIGTERM ends it."""
    with serving(store.path, "--listen", "0") as (process, address):
        assert address.startswith("http://127.0.0.1:")
        kind, text = get(address, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text")
        assert end_offset(read_openmetrics(text)) == 1
        store.lane(0).append("apples", b"y")
        store.publish()
        assert get(address)[0].startswith("text/plain; version=0.0.4")
        wait_until(lambda: end_offset(read_prometheus(get(address)[1])) == 2, "the second message")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")


def test_silent_and_broken_clients_keep_no_scraper_waiting(store: HandMadeStore) -> None:
    """Nor does one that asks for a version which is no number. The log has no traceback."""
    with serving(store.path, "--listen", "0") as (process, address), ExitStack() as stack:
        place = urlsplit(address).hostname, urlsplit(address).port
        for _ in range(CONNECTIONS_MAX + 8):
            stack.enter_context(socket.create_connection(place))
        for _ in range(4):
            with socket.create_connection(place) as broken:
                broken.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        kind, text = get(address, "application/openmetrics-text; version=abc")
        assert kind.startswith("text/plain")
        assert end_offset(read_prometheus(text)) == 1
        threads = psutil.Process(process.pid).threads
        wait_until(lambda: len(threads()) < CONNECTIONS_MAX + 8, "threads of silent clients to end")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")


def test_a_server_waits_for_a_store(store: HandMadeStore, tmp_path: Path) -> None:
    """It says once that it is not there, and shows it as soon as it is."""
    later = tmp_path / "later"
    with serving(store.path, later, "--listen", "localhost:0") as (process, address):
        assert read_openmetrics(get(address, OPENMETRICS)[1]).value("commitlog_up", store=str(later)) == 0
        HandMadeStore(later).publish()
        assert read_openmetrics(get(address, OPENMETRICS)[1]).value("commitlog_up", store=str(later)) == 1
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.endswith("[StoreNotFound]\n")
    assert errors.count("\n") == 1


def test_an_address_of_no_machine(store: HandMadeStore) -> None:
    done = run("metrics", store.path, "--listen", "no such host:9877")
    assert done.returncode == 1
    assert b"give an address of this machine" in done.stderr
    assert done.stderr.endswith(b"[ServingRefused]\n")
    assert done.stderr.count(b"\n") == 1


def test_a_port_that_is_in_use(store: HandMadeStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("metrics", store.path, "--listen", taken.getsockname()[1])
    assert done.returncode == 1
    assert b"Address already in use" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_without_the_client_library(store: HandMadeStore) -> None:
    """The error says what to install."""
    program = (
        "import sys; sys.modules['prometheus_client'] = None\nfrom commitlog.cli.app import run_command; run_command()"
    )
    command = [sys.executable, "-c", program, "metrics", str(store.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install prometheus-client" in done.stderr
    assert done.stderr.endswith("[MissingPackage]\n")
    assert done.stderr.count("\n") == 1
