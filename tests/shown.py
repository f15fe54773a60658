"""What `ps` shows of a process."""

from __future__ import annotations

import subprocess


def shown(pid: int) -> list[str]:
    """What `ps` shows of a process: its short name and its command line."""
    command = ["ps", "-ww", "-o", "comm:15=,args=", "-p", str(pid)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.rstrip().split(maxsplit=1)
