"""scripts/wheels: what it builds has the same bytes each time, and one that has not is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.wheel_building import MACHINES, ROOT, SDIST_MB, Builder, Failed, check_size, compare


@pytest.mark.nightly
def test_the_sdist_and_the_pure_wheel_have_the_same_bytes_again(tmp_path: Path) -> None:
    """In two directories; and `compare` names a file that differs, and one that is missing."""
    one, other = (Builder(tmp_path / name) for name in ("one", "another"))
    for builder in (one, other):
        builder.directory.mkdir()
        builder.build([])
    compare(one.results, other.results)
    for file in one.results.iterdir():
        check_size(file)
    (pure,) = other.results.glob("*.whl")
    pure.write_bytes(pure.read_bytes() + b"\0")
    with pytest.raises(Failed, match=r"none-any\.whl has other bytes"):
        compare(one.results, other.results)
    pure.unlink()
    with pytest.raises(Failed, match="other files"):
        compare(one.results, other.results)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(not shutil.which("cargo"), reason="there is no Rust")
def test_a_release(tmp_path: Path) -> None:
    """The sdist, the pure wheel, and a wheel for each kind of machine that this Rust builds for."""
    command = [str(ROOT / "scripts" / "wheels"), "--to", str(tmp_path), "--python", "none"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "rustup target add" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    endings = [*(f"-cp311-abi3-manylinux_2_17_{machine}.whl" for machine in MACHINES), "-py3-none-any.whl", ".tar.gz"]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == len(endings)
    assert all(name.endswith(ending) for name, ending in zip(names, sorted(endings), strict=True)), names
    assert all(name in done.stdout for name in names)


def test_a_release_that_has_grown_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pyspark_commitlog-0.1.0.tar.gz"
    file.touch()
    os.truncate(file, SDIST_MB * 1_000_000)
    with pytest.raises(Failed, match=f"{file.name} has 4.0 MB, and may have 4"):
        check_size(file)
