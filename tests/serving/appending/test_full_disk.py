"""The disk of the server's store is full: clients hear why, and nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import commitlog
from tests.namespaces import with_tmpfs
from tests.serving.asking import server_of, url_of_store
from tests.stages.test_full_disk import CONFIG, MIB, fill

CLIENT = """
import sys
import orjson, pyarrow as pa
from pyarrow import flight
import commitlog
from commitlog.remote import stream_threads
from commitlog.remote.server_errors import from_bytes

stream_threads.RESEND_SECONDS = 3600  # a busy machine may take long until there is space again
url = sys.argv[1]
values = [b"%d" % number + bytes(1000) for number in range(3000)]
client = flight.connect(url.rpartition("/")[0].replace("commitlog", "grpc"))
with commitlog.RemoteProducer(url) as producer:
    producer.send("ours", b"0").wait("flushed")
    descriptor = flight.FlightDescriptor.for_command(b'{"store": "store", "topic": "theirs"}')
    writer, reader = client.do_put(descriptor, pa.schema({"value": pa.binary()}))
    print(orjson.loads(reader.read().to_pybytes()), flush=True)
    sys.stdin.readline()  # the disk is full
    for value in values[1:]:
        producer.send("ours", value)
    try:
        for begin in range(0, 3000, 100):
            writer.write_batch(pa.record_batch({"value": pa.array(values[begin:begin + 100], pa.binary())}))
        writer.done_writing()
        while reader.read() is not None:
            pass
        writer.close()
    except flight.FlightError as error:
        found = from_bytes(error.extra_info)
        print(type(found).__name__, found.rows_sent, flush=True)
    sys.stdin.readline()  # there is space again
    producer.flush()
print("flushed", flush=True)
"""


@pytest.mark.nightly
def test_a_full_disk(tmp_path: Path) -> None:
    """A RemoteProducer sends again what is not flushed; others hear how much is in the log."""
    place = tmp_path / "disk"
    place.mkdir()

    def act() -> None:
        words = [sys.executable, "-c", CLIENT]
        with (
            commitlog.Store.open(place / "store", CONFIG) as store,
            server_of([store.path], writable=True) as server,
        ):
            words.append(url_of_store(server))
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
                assert client.stdin is not None
                assert client.stdout is not None
                assert "lane" in client.stdout.readline()
                fill(place / "ballast")
                client.stdin.write("\n")
                client.stdin.flush()
                said, _, accepted = client.stdout.readline().partition(" ")
                assert said == "DiskFull"
                (place / "ballast").unlink()
                client.stdin.write("\n")
                client.stdin.flush()
                assert client.stdout.readline() == "flushed\n"
        found: dict[str, list[int]] = {"ours": [], "theirs": []}
        with commitlog.Reader(place / "store", start="earliest") as reader:
            for message in reader:
                found[message.topic].append(int(message.value.rstrip(b"\0")))
        assert sorted(set(found["ours"])) == list(range(3000))
        assert found["theirs"] == list(range(int(accepted)))

    with_tmpfs(place, 24 * MIB, act)
