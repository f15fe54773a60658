"""Who may not follow, and is told why: certificates, other stores, copies that have diverged."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import ssl
from pathlib import Path

import pytest

import commitlog
from commitlog.disk.file_channel import DISK, FileChannel
from commitlog.errors import ReplicaRefused, ReplicationRefused, StoreSuperseded
from commitlog.replicas.promotion import promote
from commitlog.replicas.replica import Replica
from commitlog.replicas.tls import Credentials
from tests.replicas.rejoining import rejoined
from tests.replicas.scene import SEGMENT_BYTES, Scene, await_copy, check_equal
from tests.waiting import wait_until


def keeper(
    scene: Scene, copy: Path | None = None, *, again: bool = False, channel: FileChannel = DISK, **certificate: bool
) -> Replica:
    """A replica of the scene's store in this process. `certificate` says what is wrong with its."""
    own, key = scene.certificates.make("here", **certificate)
    credentials = Credentials(own, key, scene.certificates.authority)
    return Replica(copy or scene.copy, f"localhost:{scene.port}", credentials, "here", again=again, channel=channel)


def send(store: commitlog.Store, *values: bytes) -> None:
    with store.producer() as producer:
        for value in values:
            producer.send("orders", value)
        producer.flush()


def copied(scene: Scene) -> None:
    """A primary that has stopped, and a copy of all of it."""
    scene.copied(send_two)


def send_two(store: commitlog.Store) -> None:
    send(store, b"one", b"two")


def test_a_certificate_that_is_not_good_here_is_refused(scene: Scene) -> None:
    with scene.open():
        for wrong in ("foreign", "expired"):
            bad = keeper(scene, foreign=wrong == "foreign", expired=wrong == "expired")
            with pytest.raises(ReplicationRefused, match="no TLS connection") as refused:
                bad.run()
            assert ("here.pem has expired: it was valid until 2" in str(refused.value)) == (wrong == "expired")
            assert not (scene.copy / "store.json").exists()


@pytest.mark.parametrize("wrong", ["certificate", "key", "authority"])
def test_the_file_that_is_no_good_is_named(scene: Scene, wrong: str) -> None:
    """It is missing, or holds something else. A key may be another's, or have a password."""
    certificate, key = scene.certificates.make("here")
    files = {"certificate": certificate, "key": key, "authority": scene.certificates.authority}
    files[wrong] = bad = scene.path / "bad.pem"
    why = {
        "": "No such file",
        "junk": "PEM|no certificate|NO_CERTIFICATE",
    }
    if wrong == "key":
        why[scene.certificates.make("there")[1].read_text()] = "KEY_VALUES_MISMATCH"
        why[scene.certificates.with_password("here").read_text()] = "it has a password"
    for content, reason in why.items():
        if content:
            bad.write_text(content)
        with pytest.raises(ReplicationRefused, match=rf"{bad} can't be used: .*({reason}).*all in PEM"):
            Credentials(**files).context(server_side=False)


def test_a_store_with_a_foreign_certificate_is_not_followed(scene: Scene) -> None:
    certificate, key = scene.certificates.make("foreign-store", foreign=True)
    own, own_key = scene.certificates.make("here")
    with (
        scene.open(certificate=str(certificate), key=str(key)),
        pytest.raises(ReplicationRefused, match="no TLS connection"),
    ):
        Replica(
            scene.copy, f"localhost:{scene.port}", Credentials(own, own_key, scene.certificates.authority), "a"
        ).run()


def test_nobody_without_a_certificate_hears_anything(scene: Scene) -> None:
    """Neither with TLS nor without. The store goes on, and takes those that have one."""
    context = ssl.create_default_context(cafile=str(scene.certificates.authority))
    with scene.open() as store:
        wait_until(lambda: "replicas come to" in (scene.primary / "logs/ha_service.log").read_text(), "it listens")
        with (
            socket.create_connection(("localhost", scene.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
            pytest.raises(ssl.SSLError, match=r"(?i)certificate required"),
        ):
            tls.recv(1)
        with socket.create_connection(("localhost", scene.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert not plain.makefile("rb").read().startswith(b"HTTP")
        with scene.follower():
            send(store, b"one")
            await_copy(scene)


def test_a_copy_of_another_store_is_refused(scene: Scene) -> None:
    copied(scene)
    shutil.rmtree(scene.primary)
    with scene.open(), pytest.raises(ReplicaRefused, match="is a copy of store"):
        keeper(scene).run()


@pytest.mark.nightly
def test_who_rejoins_the_wrong_store_is_told_and_stays_as_it_was(scene: Scene, tmp_path: Path) -> None:
    """The store at the address is away, is another one, or was not promoted."""
    with scene.open() as store:
        send(store, b"one")
    before = (scene.primary / "store.json").read_bytes()
    with pytest.raises(ReplicationRefused, match=r"does not answer .*: start the promoted store there first"):
        rejoined(scene, scene.primary)
    shutil.copytree(scene.primary, tmp_path / "copied")
    with scene.open(tmp_path / "copied"), pytest.raises(ReplicaRefused, match="it was not promoted since"):
        rejoined(scene, scene.primary)
    with (
        scene.open(tmp_path / "another"),
        pytest.raises(ReplicaRefused, match="give each store a directory of its own"),
    ):
        rejoined(scene, scene.primary)
    assert (scene.primary / "store.json").read_bytes() == before


class MountPoint(FileChannel):
    """The copy's directory is where a disk is mounted: the kernel renames no such directory."""

    def rename(self, source: str | Path, target: str | Path) -> None:
        if (Path(source) / "replica.json").exists():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        super().rename(source, target)


def test_a_copy_on_a_mount_point_is_not_set_aside_and_says_what_to_do(scene: Scene) -> None:
    copied(scene)
    shutil.rmtree(scene.primary)
    with scene.open(), pytest.raises(ReplicaRefused, match="is a mount point, which can"):
        keeper(scene, again=True, channel=MountPoint()).run()
    assert (scene.copy / "store.json").exists()


def test_a_directory_that_is_no_replica_is_left_alone(scene: Scene) -> None:
    (scene.copy / "photos").mkdir(parents=True)
    with pytest.raises(ReplicaRefused, match="other things in it"):
        keeper(scene).run()
    with scene.open():
        pass
    with pytest.raises(ReplicaRefused, match="commitlog rejoin"):
        keeper(scene, scene.primary).run()


@pytest.mark.nightly
def test_a_store_that_was_restored_has_another_log(scene: Scene) -> None:
    """The copy has diverged, whether it is longer than the store or not.

    There was no promotion, so `commitlog rejoin` would find nothing to take out.
    """
    copied(scene)
    shutil.copytree(scene.primary, scene.path / "older")
    with scene.open() as store, scene.follower():
        send(store, b"three")
        await_copy(scene)
    shutil.rmtree(scene.primary)
    (scene.path / "older").rename(scene.primary)
    with scene.open() as store:
        with pytest.raises(ReplicaRefused, match="diverged: set the copy aside"):
            keeper(scene).run()
        send(store, b"three, and it is another one", b"four")
        with pytest.raises(ReplicaRefused, match="diverged: set the copy aside"):
            keeper(scene).run()


@pytest.mark.nightly
def test_a_copy_too_far_behind_is_refused_and_again_begins_a_new_one(scene: Scene) -> None:
    """The old one is renamed. The new one begins where the store does, with all its topics."""
    scene.sections["retention"] = {"max_bytes": 4 * SEGMENT_BYTES, "interval_ms": 20}
    with scene.open(keep_bytes=0) as store, scene.follower():
        send(store, b"one")
        with store.producer() as producer:
            producer.send("gone", b"a topic without a message left")
            producer.flush()
        await_copy(scene)
    first = scene.primary / "lanes/0/commitlog" / f"{0:020d}"
    with scene.open(keep_bytes=0) as store:
        with store.producer() as producer:
            for number in range(1000):
                producer.send("orders", b"%4d" % number * 256)
            producer.flush()
        wait_until(lambda: not first.exists(), "retention has deleted the first segment")
        with pytest.raises(ReplicaRefused, match="too far behind"):
            keeper(scene).run()
        with scene.replica(None, "--again"):
            wait_until((scene.path / "copy.aside-1").exists, "the old copy is set aside")
            await_copy(scene)
            check_equal(scene)
    promote(scene.copy)
    with scene.open(scene.copy, listen="") as store, store.producer() as producer:
        assert producer.send("gone", b"it goes on").offset == 1


@pytest.mark.nightly
def test_a_copy_with_more_than_was_promoted_has_to_rejoin(scene: Scene) -> None:
    copied(scene)
    third = scene.path / "third"
    with scene.open() as store, scene.follower(third, name="third"):
        send(store, b"only in the third copy")
        await_copy(scene, third)
    promote(scene.copy)
    with scene.open(scene.copy), pytest.raises(ReplicaRefused, match="commitlog rejoin"):
        keeper(scene, third).run()


@pytest.mark.nightly
def test_a_copy_of_a_later_epoch_stops_the_old_primary(scene: Scene) -> None:
    copied(scene)
    third = scene.path / "third"
    promote(scene.copy)
    with scene.open(scene.copy), scene.follower(third, name="third"):
        wait_until((third / "store.json").exists, "the third copy has begun")
    old = scene.open()
    with pytest.raises(StoreSuperseded):
        keeper(scene, third).run()
    wait_until(lambda: not old.running, "the old primary has stopped")
    with pytest.raises(StoreSuperseded):
        old.close()


@pytest.mark.nightly
def test_a_second_copy_of_one_name_ends_the_first_one_by_name(scene: Scene) -> None:
    """Else the two would end each other's connections for ever, and neither would say why."""
    with scene.open() as store, scene.replica() as first:
        send(store, b"one")
        await_copy(scene)
        with scene.follower(scene.path / "second"):
            said = first.ended()
            assert "another connection of replica copy has come" in said
            assert "commitlog replica --name" in said
            await_copy(scene, scene.path / "second")
