"""docs/serve.md: its programs of clients run against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commitlog.serving.server_processes import Server
from commitlog.serving.server_settings import settings_of
from tests.builders.hand_made import HandMadeStore
from tests.builders.typed_topic import append_rows, declare
from tests.nightly import with_nightly
from tests.programs import DOCS, PATIENT_SECONDS, files, patient

PAGE = DOCS / "serve.md"
PRINTED = {
    "read_served.py": "['apple', 'pear']\n[('pear',)]\n",
    "url_reader.py": "0 0\n0 1\n",
    "flight_client.py": "['events', 'orders'] ['fruit', 'price']\n[{'fruit': 'pear'}]\n",
}


@patient
@pytest.mark.parametrize("name", with_nightly(list(PRINTED)[:1], list(PRINTED)[1:]))
def test_a_client(name: str, tmp_path: Path) -> None:
    store = HandMadeStore(tmp_path / "events")
    schema = declare(store, "orders", "fruit STRING, price DOUBLE")
    for fruit in ("apple", "pear"):
        append_rows(store.lane(0), schema, [{"fruit": fruit, "price": 1.5}])
    store.publish()
    settings = settings_of(
        [str(store.path)],
        "127.0.0.1:0",
        certificate=None,
        key=None,
        client_authority=None,
        tokens=None,
        writable=False,
        advertise=None,
    )
    with Server(settings) as server:
        text = files(PAGE)[name]
        assert "127.0.0.1:4433" in text
        program = text.replace("127.0.0.1:4433", f"127.0.0.1:{server.ports[0]}")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED[name]
