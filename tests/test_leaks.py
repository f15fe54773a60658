"""The check for leaks sees what it should: each kind is made, seen, and cleaned up."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leaks
from tests.waiting import wait_until

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def shared_memory(shm_root: Path) -> Iterator[Path]:
    """Stands in for /dev/shm, where things of other programs come and go."""
    directory = shm_root / "shared"
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "SHARED_MEMORY", directory)
        yield directory
    directory.rmdir()


@pytest.fixture
def before(shm_root: Path, tmp_path: Path, shared_memory: Path) -> Iterator[leaks.Snapshot]:
    snapshot = leaks.Snapshot.take(f"COMMITLOG_SHM_DIR={shm_root}", tmp_path)
    assert snapshot.leaks() == []
    yield snapshot
    leaks.kill(snapshot.left_processes())


def test_nothing_new_is_no_leak(before: leaks.Snapshot) -> None:
    assert before.leaks() == []


def test_what_comes_after_a_clean_look_is_of_others() -> None:
    """Another process of the run makes a semaphore, whose name is there for a moment."""
    looks = iter([["sem.mine"], [], ["sem.of another"]])
    assert leaks.left_in_the_end(lambda: next(looks), patience=60) == []


def test_what_stays_is_left() -> None:
    assert leaks.left_in_the_end(lambda: ["sem.mine"], patience=0.01) == ["sem.mine"]


def test_descriptor(before: leaks.Snapshot, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):
        (leak,) = before.leaks()
    assert leak.startswith("descriptor")
    assert leak.endswith(str(tmp_path / "open"))


def test_thread(before: leaks.Snapshot) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left alone")
    thread.start()
    assert before.leaks() == ["thread left alone"]
    end.set()
    thread.join()


def test_child_and_its_zombie(before: leaks.Snapshot) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as child:
        seen = f"process {child.pid}: {f'{sys.executable} -c {SLEEP}'[:200]}"
        wait_until(lambda: seen in before.leaks(), what="the child is seen by its command")
        child.kill()
        wait_until(lambda: any("nobody waited" in leak for leak in before.leaks()), what="the zombie is seen")


def test_grandchild_that_lost_its_parent_and_left_the_session(before: leaks.Snapshot) -> None:
    """It is no descendant any more: only its inherited environment shows where it comes from."""
    program = f"""if True:
        import subprocess, sys
        command = [sys.executable, "-c", {SLEEP!r}]
        print(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True).pid)
    """
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, check=True)
    wait_until(lambda: before.left_processes() == {int(done.stdout)}, what="it is seen, and nothing else")
    leaks.kill(before.left_processes())
    wait_until(lambda: before.leaks() == [], what="the killed process is gone")


def test_shared_memory_that_no_process_uses(before: leaks.Snapshot, shared_memory: Path) -> None:
    path = shared_memory / "test-of-leaks"
    path.write_bytes(b"x")
    try:
        assert before.leaks() == [f"shared memory {path}"]
    finally:
        path.unlink()


def test_semaphore_that_a_process_uses(before: leaks.Snapshot, shared_memory: Path) -> None:
    """It is made under another name, as `sem_open` does it, and mapped from then on."""
    made, path = shared_memory / "sem.made", shared_memory / "sem.mp-test"
    made.write_bytes(bytes(32))
    with made.open("r+b") as file:
        used = mmap.mmap(file.fileno(), 0)
    path.hardlink_to(made)
    made.unlink()
    try:
        assert not [leak for leak in before.leaks() if leak.startswith("shared")]  # mmap keeps a descriptor
        used.close()
        assert before.leaks() == [f"shared memory {path}"]
    finally:
        path.unlink()


@pytest.mark.parametrize("is_of_a_test", [True, False])
def test_pool_of_a_killed_store(
    before: leaks.Snapshot, shared_memory: Path, tmp_path: Path, is_of_a_test: bool
) -> None:
    """Somebody who works beside the tests may kill a store. A test may not leave one."""
    pool = shared_memory / "test-of-leaks"
    pool.mkdir()
    (pool / "store").write_bytes(os.fsencode((tmp_path if is_of_a_test else tmp_path.parent) / "store"))
    try:
        assert before.leaks() == ([f"shared memory {pool}"] if is_of_a_test else [])
    finally:
        shutil.rmtree(pool)
