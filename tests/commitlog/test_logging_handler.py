"""The handler for `logging`: every record once, from threads and forked children.

An error never gets into the program.
"""

from __future__ import annotations

import logging
import logging.config
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import commitlog.logging
from commitlog import errors
from tests.children import in_child
from tests.fake_clock import SetClock

SMALL = {"store": {"segment_bytes": 1 << 16, "max_lanes": 4}, "producer": {"lane_wait_ms": 0}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[commitlog.Store]:
    with commitlog.Store.open(tmp_path / "store", SMALL) as opened:
        yield opened


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of the test's own, which pytest does not listen to. It is cleaned up afterwards."""
    made = logging.Logger("tests.shop", logging.DEBUG)
    yield made
    for handler in made.handlers:
        handler.close()


def read(path: Path) -> list[commitlog.Message]:
    with commitlog.Reader(path) as reader:
        return list(reader)


def test_a_record_is_a_message(store: commitlog.Store, logger: logging.Logger) -> None:
    """Text, name, level and time are kept, whatever they hold. The first record leases the lane."""
    handler = commitlog.logging.Handler(store.path, topic="shop", level=logging.INFO)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    assert handler._producer is None
    logger.debug("not this")
    logger.warning("sold %d", 3)
    logging.LoggerAdapter(logger, {}).log(25, "odd\n\x01")
    handler.flush()
    first, second = read(store.path)
    assert (first.topic, first.value, first.key, first.tags) == ("shop", b"WARNING sold 3", "tests.shop", "WARNING")
    assert abs(first.born_timestamp - first.timestamp) < 100_000
    assert (second.value, second.tags) == (b"Level 25 odd\n\x01", "Level 25")
    assert handler.dropped == 0
    assert "shop" in repr(handler)


def test_it_is_made_by_a_configuration(store: commitlog.Store) -> None:
    """As `logging.config.dictConfig` does it; a wrong topic is told there."""
    name = "tests.configured"
    handler = {"class": "commitlog.logging.Handler", "path": str(store.path), "topic": "configured"}
    config = {"version": 1, "disable_existing_loggers": False, "handlers": {"log": handler}}
    logging.config.dictConfig(config | {"loggers": {name: {"handlers": ["log"], "level": "INFO"}}})
    logging.getLogger(name).info("here")
    (made,) = logging.getLogger(name).handlers
    made.flush()
    assert [message.topic for message in read(store.path)] == ["configured"]
    logging.getLogger(name).removeHandler(made)
    made.close()
    with pytest.raises(errors.IllegalTopic):
        commitlog.logging.Handler(store.path, topic="a b")


def test_threads_and_children_log_side_by_side(store: commitlog.Store, logger: logging.Logger) -> None:
    """Each process has a lane of its own, made when it first logs.

    A child that logs nothing has none.
    """
    handler = commitlog.logging.Handler(store.path)
    logger.addHandler(handler)
    logger.info("parent 0")

    def log(name: str) -> str:
        for number in range(1, 100):
            logger.info("%s %d", name, number)
        handler.flush()
        producer = handler._producer
        logging.shutdown([lambda: handler])
        return f"{producer.lane if producer else None} {handler.dropped}"

    threads = [threading.Thread(target=logger.info, args=("thread %d", number)) for number in range(20)]
    for thread in threads:
        thread.start()
    said = in_child(lambda: log("child")), in_child(lambda: log("other"))
    assert said == ("1 0", "1 0")  # one after the other
    assert in_child(lambda: logging.shutdown([lambda: handler])) == "None"
    for thread in threads:
        thread.join()
    logger.info("parent 1")
    handler.flush()
    expected = [f"parent {number}" for number in range(2)] + [f"thread {number}" for number in range(20)]
    expected += [f"{name} {number}" for name in ("child", "other") for number in range(1, 100)]
    messages = read(store.path)
    assert sorted(message.value.decode() for message in messages) == sorted(expected)
    assert {message.partition for message in messages} == {0, 1}


def test_a_store_that_stops_is_no_error_of_the_program(
    store: commitlog.Store, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported on standard error, once in five seconds, and dropped records are counted.

    Then it goes on. The first record after the stop is in the store's memory, and comes out with
    the next start.
    """
    clock = SetClock()
    monkeypatch.setattr("commitlog.logging.SYSTEM_CLOCK", clock)
    handler = commitlog.logging.Handler(store.path)
    logger.addHandler(handler)
    logger.info("one")
    store.close()
    logger.info("late")
    for _ in range(3):
        logger.info("lost")
    handler.flush()
    assert handler.dropped == 3
    assert capsys.readouterr().err.count("--- Logging error ---") == 1
    clock.pass_seconds(6)
    logger.info("lost")
    assert "StoreNotRunning" in capsys.readouterr().err
    with commitlog.Store.open(store.path) as again:
        logger.info("lost, too early")
        clock.pass_seconds(6)
        logger.info("two")
        handler.flush()
        assert [message.value for message in read(again.path)] == [b"one", b"late", b"two"]
        assert handler.dropped == 5
        handler.close()
        logger.info("after the close")
        assert handler.dropped == 6
        with again.producer() as producer:
            assert producer.lane == 0
    assert capsys.readouterr().err == ""


def test_a_record_that_can_not_be_sent_stops_no_other(
    store: commitlog.Store, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record is too large, or its arguments do not fit.

    `handleError` reports it, and the next record is sent.
    """
    handler = commitlog.logging.Handler(store.path)
    logger.addHandler(handler)
    logger.info("x" * 100_000)
    logger.info("%d", "no number")
    logger.info("next")
    handler.flush()
    assert [message.value for message in read(store.path)] == [b"next"]
    assert capsys.readouterr().err.count("--- Logging error ---") == 2
    assert handler.dropped == 2


def test_what_the_log_itself_logs_does_not_come_back(store: commitlog.Store) -> None:
    """What it logs while it sends a record does not come back.

    Otherwise, its records are records like others, and so are those of a signal handler.
    """
    root = logging.getLogger()
    handler = commitlog.logging.Handler(store.path)

    class Talking(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            logging.getLogger("commitlog.appending.acknowledgements").warning("from inside")
            return super().format(record)

    handler.setFormatter(Talking())
    root.addHandler(handler)
    try:
        logging.getLogger("commitlog.client.store").warning("from outside")
        logging.getLogger("tests").warning("mine")
    finally:
        root.removeHandler(handler)
        handler.close()
    with commitlog.Producer(store.path) as producer:
        producer.flush()
    assert [message.value for message in read(store.path)] == [b"from outside", b"mine"]


def test_a_signal_handler_that_logs_inside_a_record(
    store: commitlog.Store, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """The handler's record is dropped and reported.

    The record that it interrupted is sent, and so is the next one, at once.
    """
    handler = commitlog.logging.Handler(store.path)

    class Signalled(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            if record.msg == "one":
                signal.raise_signal(signal.SIGUSR1)
            return super().format(record)

    def log(_number: int, _frame: FrameType | None) -> None:
        logger.info("inside")

    handler.setFormatter(Signalled())
    logger.addHandler(handler)
    before = signal.signal(signal.SIGUSR1, log)
    try:
        logger.info("one")
    finally:
        signal.signal(signal.SIGUSR1, before)
    logger.info("two")
    handler.flush()
    assert [message.value for message in read(store.path)] == [b"one", b"two"]
    assert "ConcurrentUse" in capsys.readouterr().err


PROGRAM = """
import logging, sys, commitlog.logging
logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[commitlog.logging.Handler(sys.argv[1])])
for number in range(1000):
    logging.info("%d", number)
logging.info("half \\ud800")
"""


def test_the_end_of_a_program_flushes(store: commitlog.Store) -> None:
    """`logging.shutdown` flushes, as with every handler, and then the lane is free.

    Half a surrogate pair is written out.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(store.path)], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    expected = [*(b"%d" % number for number in range(1000)), b"half \\ud800"]
    assert [message.value for message in read(store.path)] == expected
    with commitlog.Producer(store.path) as producer:
        assert producer.lane == 0
