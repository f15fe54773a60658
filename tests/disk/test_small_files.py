"""Small files are replaced whole, or an error names them and nothing is left beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.file_channel import DISK


def test_a_file_that_can_not_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    """Its last step may fail, too: the system refuses the name."""
    file = tmp_path / "store.json"
    file.mkdir()
    with pytest.raises(OSError, match=r"store\.json'$") as caught:
        DISK.replace_file(file, b"{}")
    assert (caught.value.filename, list(tmp_path.iterdir())) == (str(file), [file])
