"""What commands print on a terminal of 80 columns: lines that fit, broken between words."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import commitlog
from tests.command_line import run
from tests.nightly import with_nightly

ERASE = "\x1b[K"
"""What tells a terminal to erase the rest of the line."""


def on_terminal(*words: object, typed: bytes = b"", exit_code: int = 0) -> list[str]:
    """The lines of a command on a terminal of 80x24, on which somebody has `typed` in advance."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {
        "TERM": "xterm"
    }
    shown = bytearray()
    with subprocess.Popen(
        [sys.executable, "-m", "commitlog.cli", *map(str, words)], stdin=its, stdout=its, stderr=its, env=environment
    ) as process:
        os.close(its)
        os.write(ours, typed)
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # EIO: nobody has the terminal any more
            pass
        finally:
            os.close(ours)
    assert process.returncode == exit_code
    return shown.decode().splitlines()


def widest(shown: list[str]) -> int:
    """The columns of the widest line. A path alone stays whole; to erase a line takes no column."""
    return max(len(line.replace(ERASE, "")) for line in shown if " " in line.strip())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with long names, whose positions have many digits."""
    path = tmp_path_factory.mktemp("s") / "s"
    with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 20}}) as opened, opened.producer() as producer:
        opened.create_topic("typed", schema="id BIGINT")
        for topic in ("orders", "orders.of.the.last.year.and.of.the.year.before"):
            producer.send_batch(topic, [b"x" * 1000] * 900)
            producer.send_batch(topic, [b"x" * 1000] * 900)
        producer.send("one", b"x")
        producer.flush()
        with commitlog.Reader(path, "orders", name="billing.of.the.whole.company.and.of.its.daughters") as reader:
            reader.commit(next(reader))
    return path


@pytest.mark.parametrize(
    "command",
    with_nightly(
        [("stat",), ("top", "--plain", "--count", "1", "--interval", "10ms")],
        [(("verify",),), (("logs",),), (("topics", "--columns"),), (("readers",),)],
    ),
    ids=" ".join,
)
def test_lines_fit_the_terminal(store: Path, command: tuple[str, ...]) -> None:
    shown = on_terminal(command[0], store, *command[1:])
    assert widest(shown) <= 80
    if command[0] not in ("logs", "top"):  # its numbers differ each time
        whole = run(command[0], store, *command[1:]).stdout.decode()
        assert len(whole.splitlines()) <= len(shown), "a pipe gets each line whole"
        still = {"ago", "second", "seconds"}  # of a reader, which stands still for longer
        assert [word for word in " ".join(shown).split() if word.isalpha() and word not in still] == [
            word for word in whole.split() if word.isalpha() and word not in still
        ]


def test_a_backup_erases_its_progress(store: Path, tmp_path: Path) -> None:
    """The line that it writes again and again, before the report."""
    shown = on_terminal("backup", store, tmp_path / "backup")
    assert widest(shown) <= 80
    assert any(line.startswith(ERASE) for line in shown)


def test_one_is_not_many(store: Path) -> None:
    said = run("topics", store).stdout + run("stat", store).stdout
    assert b"one: 1 message," in said
    assert b"orders: 1,800 messages," in said
    assert b"typed: 0 messages," in said
