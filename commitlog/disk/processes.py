"""What the kernel says of a process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from commitlog.disk.file_channel import DISK


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the program's name: the first is the state.

    The name stands in parentheses, and may have blanks and parentheses in it. Raises OSError; it is
    FileNotFoundError or ProcessLookupError where the process has ended.
    """
    return DISK.read_file(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()


def has_open(pid: int, file: Path) -> bool:
    """Whether a process has a file open.

    False for a process that is not there, or that is another user's.
    """
    descriptors = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        for name in DISK.list(descriptors):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile, or no file
                if (descriptors / name).samefile(file):
                    return True
    return False
