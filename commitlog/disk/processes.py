"""What the kernel says of a process."""

from __future__ import annotations

from commitlog.disk.file_channel import DISK


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the program's name: the first is the state.

    The name stands in parentheses, and may have blanks and parentheses in it. Raises OSError; it is
    FileNotFoundError or ProcessLookupError where the process has ended.
    """
    return DISK.read_file(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()
