"""What `ps` shows of a process."""

from __future__ import annotations

from pathlib import Path

import pytest


def shown(pid: int) -> list[str]:
    """The short name and the command line, from where `ps` has them. A bare machine has no `ps`.

    Skips the test where an emulator runs the process: from QEMU 10 on, the command line is its own.
    """
    process = Path("/proc", str(pid))
    if (process / "exe").readlink().name.startswith("qemu-"):
        pytest.skip("an emulator shows its own command line")
    line = (process / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    return [(process / "comm").read_text().rstrip("\n"), line.decode(errors="replace")]
