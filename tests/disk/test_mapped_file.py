"""A mapped segment is not closed under its user, and outlives its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.mapped_file import MappedFile
from commitlog.errors import DamagedFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / f"{8192:020d}"
    path.write_bytes(b"first".ljust(4096, b"."))
    return path


def test_read_only(path: Path) -> None:
    """No process ever stores to a mapped file."""
    mapped = MappedFile(path, 8192, 4096)
    assert (bytes(mapped.view[:5]), len(mapped.view), mapped.start) == (b"first", 4096, 8192)
    with pytest.raises(TypeError):
        mapped.view[0] = 1
    assert mapped.close()


def test_a_file_that_is_too_long(path: Path) -> None:
    """Its first bytes are the segment: they may have all of its records."""
    mapped = MappedFile(path, 8192, 4095)
    assert mapped.is_whole
    assert bytes(mapped.view) == path.read_bytes()[:4095]
    assert mapped.close()


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_what_is_no_file(path: Path, kind: str) -> None:
    """It is named, like a segment that is damaged."""
    other = path.with_name(f"{0:020d}")
    other.mkdir() if kind == "directory" else other.symlink_to(path)
    with pytest.raises(DamagedFile, match=other.name):
        MappedFile(other, 0, 8192)


@pytest.mark.parametrize("size", [4097, 8192])
def test_a_file_that_is_too_short(path: Path, size: int) -> None:
    """The file's bytes are copied, and zeros follow.

    To read beyond the end of a mapped file would be a SIGBUS.
    """
    mapped = MappedFile(path, 8192, size)
    assert not mapped.is_whole
    assert bytes(mapped.view) == path.read_bytes().ljust(size, b"\0")
    assert mapped.close()


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        MappedFile(tmp_path / f"{0:020d}", 0, 4096)


def test_unlinked_while_mapped(path: Path) -> None:
    """A retired file stays readable as long as its mapping does."""
    mapped = MappedFile(path, 8192, 4096)
    path.unlink()
    assert bytes(mapped.view[:5]) == b"first"
    assert mapped.close()


def test_a_view_in_use_keeps_the_mapping(path: Path) -> None:
    """Python unmaps nothing that is in use: a caller that holds a view can finish."""
    mapped = MappedFile(path, 8192, 4096)
    part = mapped.view[:5]
    assert not mapped.close()
    assert bytes(part) == b"first"
    part.release()
