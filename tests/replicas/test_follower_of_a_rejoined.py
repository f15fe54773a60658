"""A reader that follows an old primary while it rejoins is told what it had read for nothing."""

from __future__ import annotations

import pytest

import commitlog
from commitlog.disk.replica_mark import load_mark
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DataLoss
from commitlog.replicas.promotion import promote
from tests.nightly import with_nightly
from tests.ports import free_port
from tests.replicas.rejoining import rejoined
from tests.replicas.scene import Scene, flushed_of
from tests.replicas.test_taking_over import send, send_two
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("look_each_time")


@pytest.mark.parametrize("looks", with_nightly([False], [True]))
def test_a_follower_of_an_old_primary_hears_of_the_loss(scene: Scene, looks: bool) -> None:
    """Other messages get the offsets of those that it has read. It may look before they come."""
    scene.copied(send_two)
    with scene.open() as store:
        send(store, *(b"only here %04d" % number for number in range(5)))
    promote(scene.copy)
    old, new = scene.primary, scene.copy
    port = free_port()
    with scene.open(new, listen=f"127.0.0.1:{port}") as store, commitlog.Reader(old, "orders", follow=True) as reader:
        assert len([next(reader) for _ in range(7)]) == 7
        assert reader.poll() is None
        renamed = Scene(scene.path, scene.certificates, scene.templates, port)
        assert rejoined(renamed, old) == 5
        with pytest.raises(DataLoss, match="make a new reader"):  # noqa: PT012
            if looks:
                reader.poll()
            send(store, *(b"only over %04d" % number for number in range(6)))
            with renamed.follower(old):
                wait_until(lambda: flushed_of(old) == flushed_of(new), "the old primary has what the new one has")
                wait_until(
                    lambda: (mark := load_mark(StoreDirectory(old))) is not None and mark.complete, "all is there"
                )
            reader.poll()
