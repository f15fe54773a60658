"""What docs/serve.md shows: a server with TLS and tokens, and a query that reads by its URL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.builders.hand_made import small_store
from tests.programs import DOCS, blocks, command, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = DOCS / "serve.md"
COMMITLOG = Path(sys.executable).parent


@contextmanager
def running(words: list[str], directory: Path) -> Iterator[str]:
    """A server, until the end of the block. Gives the first line that it prints."""
    process = subprocess.Popen(
        [str(COMMITLOG / words[0]), *words[1:]], cwd=directory, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory as the page has it: a store, a token, certificates."""
    small_store(tmp_path / "data/events")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (line,) = (
        line for line in "".join(blocks(PAGE, "sh")).splitlines() if "commitlog token add" in line and ">" in line
    )
    subprocess.run(line, shell=True, cwd=tmp_path, check=True, env={"PATH": f"{COMMITLOG}:/usr/bin:/bin"})
    return tmp_path


def test_a_query_reads_by_url(spark: SparkSession, place: Path) -> None:
    """The page's program, with the server's address in place of the one that stands there."""
    words = [word.replace("0.0.0.0:4433", "localhost:0") for word in command(PAGE, "commitlog serve data/events --l")]
    write_files(PAGE, place)
    program = (place / "billing.py").read_text()
    for name in ("billing-token", "ca.pem", "checkpoint", "rows"):
        program = program.replace(f'"{name}"', f'"{place / name}"')
    program = program.replace('.option("subscribe"', '.option("startingOffsets", "earliest").option("subscribe"')
    with running(words, place) as url:
        names: dict[str, object] = {}
        exec(compile(program.replace("commitlog+tls://events.example:4433/events", url), "billing.py", "exec"), names)
        query = names["query"]
        query.processAllAvailable()  # type: ignore[attr-defined]
        query.stop()  # type: ignore[attr-defined]
    assert spark.read.parquet(str(place / "rows")).count() == 200
