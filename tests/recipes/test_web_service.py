"""docs/web-service.md: its applications under gunicorn and uvicorn, and under what ends workers.

What was answered with 201 is in the log, once; no lane stays taken.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

import commitlog
from tests.nightly import with_nightly
from tests.programs import DOCS, command, write_files
from tests.recipes.web_client import Service, kill, sending, serving
from tests.waiting import wait_until

PAGE = DOCS / "web-service.md"
FEW_LANES = {"store": {"segment_bytes": 1 << 16, "max_lanes": 5}, "producer": {"lane_wait_ms": 0}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_files(PAGE, tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def gunicorn(*more: str) -> list[str]:
    words = ["unix:socket" if ":8000" in word else word for word in command(PAGE, "gunicorn ")]
    return [*words, *more, "--no-control-socket"]


def uvicorn() -> list[str]:
    return " ".join(command(PAGE, "uvicorn ")).replace("--port 8000", "--uds socket").split()


def sent(place: Path) -> Counter[str]:
    """How often each request is in the store, by its path."""
    with commitlog.Reader(place / "data/events", topic="requests") as reader:
        return Counter(str(message.key).removeprefix("/") for message in reader)


def check(place: Path, answers: dict[str, int]) -> None:
    """What was answered is there, and nothing is there twice."""
    there = sent(place)
    assert {key for key, status in answers.items() if status == 201} <= there.keys()
    assert set(answers.values()) <= {0, 201, 202}  # 0: the client of a killed worker; 202: the disk took five seconds
    assert max(there[key] for key in answers) == 1


def replaced(service: Service, old: set[int]) -> bool:
    return len(service.workers()) == 2 and not service.workers() & old


@pytest.mark.nightly
@pytest.mark.lasting
@pytest.mark.parametrize("server", with_nightly(["uvicorn"], ["gunicorn", "gunicorn --preload"]))
def test_workers_come_and_go(server: str, place: Path) -> None:
    """A worker is killed, all are reloaded, and the server stops in the middle of a request.

    The store has five lanes, so that a lane that stays taken would be missed.
    """
    words = uvicorn() if server == "uvicorn" else gunicorn(*server.split()[1:])
    answers: dict[str, int] = {}
    with commitlog.Store.open(place / "data/events", FEW_LANES) as store:
        with serving(words, place) as service:
            with sending(service, answers):
                wait_until(lambda: len(answers) > 10)
                killed = service.workers()
                for pid in killed:
                    kill(pid)
                wait_until(lambda: replaced(service, killed), "the killed workers are replaced")
                seen = len(answers)
                wait_until(lambda: len(answers) > seen + 10)
                old = service.workers()
                service.process.send_signal(signal.SIGHUP)
                wait_until(lambda: replaced(service, old), "the workers are new ones")
                seen = len(answers)
                wait_until(lambda: len(answers) > seen + 10)
            begun = service.begin("last", b"one pear")
            service.process.terminate()
            # uvicorn's first process keeps the socket open, so nobody refuses what nobody takes.
            wait_until(lambda: service.post("late", patience=1) != 201, "the server takes no more requests")
            answers["last"] = begun.end()
            assert answers["last"] in {201, 202}
            service.process.wait()
        report = store.close()
    assert report.drained
    assert not report.kept
    check(place, answers)


@pytest.mark.nightly
@pytest.mark.parametrize("words", with_nightly([gunicorn()], [uvicorn()]), ids=["gunicorn", "uvicorn"])
def test_a_store_that_stops_and_clients_that_go_away(words: list[str], place: Path) -> None:
    """A worker goes on when the store runs again. A request that was cut off is no message."""
    path = place / "data/events"
    with commitlog.Store.open(path, FEW_LANES) as store:
        with serving(words, place) as service:
            assert service.post("first") in {201, 202}
            service.begin("cut", b"a long value").go_away()
            assert service.post("%01") == 400
            store.close()
            # What a worker still sends into the pool that it holds is there after the next start.
            refused = [service.post("late") for _ in range(5)]
            assert 503 in refused
            store = commitlog.Store.open(path, FEW_LANES)
            wait_until(lambda: service.post("again") == 201)
        assert not store.close().kept
    there = sent(place)
    assert there["first"] == 1
    assert there["again"] >= 1
    assert there["late"] == refused.count(202)
    assert not there["cut"] + there["\x01"]
