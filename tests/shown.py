"""What `ps` shows of a process."""

from __future__ import annotations

from pathlib import Path


def shown(pid: int) -> list[str]:
    """The short name and the command line, from where `ps` has them. A bare machine has no `ps`."""
    process = Path("/proc", str(pid))
    line = (process / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    return [(process / "comm").read_text().rstrip("\n"), line.decode(errors="replace")]
