"""`commitlog run --config FILE` reads the file again on SIGHUP."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.test_cli import SMALL, running
from tests.command_line import run_process


@pytest.mark.nightly
def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    """One line says what has changed, or why nothing has; the store goes on either way."""
    config, store = tmp_path / "my.toml", tmp_path / "store"
    config.write_text(SMALL)
    with running(store, config) as process:
        assert process.stderr
        for content, says in [
            (SMALL.replace("65536", "131072"), f"reloaded {config}: store.segment_bytes needs a new store"),
            ("[store]\nmax_lanes = 0\n", f"commitlog: nothing is reloaded: {config}: store.max_lanes = 0: allowed are"),
            (f"{SMALL}[retention]\nmax_bytes = 1\n", f"reloaded {config}: retention.max_bytes holds at once"),
            (f"{SMALL}[retention]\nmax_bytes = 1\n", f"reloaded {config}: nothing has changed"),
        ]:
            config.write_text(content)
            process.send_signal(signal.SIGHUP)
            assert process.stderr.readline().decode().startswith(says)
        assert run_process("produce", store, "t", given=b"one\n").returncode == 0
        process.terminate()
        assert process.wait(60) == 0
