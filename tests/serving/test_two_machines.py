"""Two machines without a common directory: a store and its server here, a Spark cluster there.

The machines are network namespaces, and each hides the other's directory. A streaming query reads
by URL with TLS and a token, and writes Parquet; the server is killed with kill -9 meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import trustme

from commitlog.spark.launching.java import find_java
from tests.spark_session import quick_options, spark_home
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMMITLOG = Path(sys.executable).parent / "commitlog"
MESSAGES = 20_000
START_SECONDS = 300.0
"""Three JVMs start, one after the other, perhaps beside others."""

PRODUCER = """
import sys, time, commitlog
path, most = sys.argv[1], int(sys.argv[2])
with commitlog.Store.open(path, {"store": {"segment_bytes": 1 << 20}}) as store, store.producer() as producer:
    print("the store runs", flush=True)
    for number in range(most):
        producer.send("orders", b"%d" % number)
        if number % 100 == 99:
            time.sleep(0.05)
    producer.flush(timeout=60)
    print("sent", flush=True)
    sys.stdin.read()
"""

DRIVER = """
import sys, time, commitlog.spark
from pathlib import Path
url, home, stop, master = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
config = {
    "spark.ui.enabled": False,
    "spark.executor.memory": "500m",
    "spark.files": f"{home}/secret-token,{home}/ca.pem",
    "spark.eventLog.enabled": True,
    "spark.eventLog.dir": str(home / "events"),
}
spark = commitlog.spark.session("cluster", master, config)
reader = spark.readStream.format("commitlog").option("subscribe", "orders").option("startingOffsets", "earliest")
frame = reader.option("tokenFile", "secret-token").option("caFile", "ca.pem").option("maxOffsetsPerTrigger", 1500).load(url)
rows = frame.selectExpr("CAST(value AS STRING) AS text", "partition", "offset")
rows.explain(True)
writer = rows.writeStream.format("parquet").option("checkpointLocation", str(home / "checkpoint"))
while not stop.exists():
    query = writer.start(str(home / "rows"))
    while query.isActive and not stop.exists():
        time.sleep(0.2)
    query.processAllAvailable() if query.isActive else print("the query failed:", query.exception(), flush=True)
    query.stop()
spark.stop()
"""


def _allowed() -> bool:
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not _allowed(), reason="namespaces need root, ip and unshare"),
    pytest.mark.timeout(900),
]


@dataclass
class Machine:
    """A network namespace whose processes do not see the `hidden` directories."""

    name: str
    address: str
    home: Path
    hidden: tuple[Path, ...]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, log: str, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Starts a process of this machine, with its output in a file of `home`."""
        hide = "".join(f"mount -t tmpfs none {path} && " for path in self.hidden) + 'exec "$@"'
        words = ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", hide, "sh", *map(str, command)]
        with (self.home / log).open("w") as output:
            process = subprocess.Popen(
                words,
                cwd=self.home,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.started.append(process)
        return process

    def said(self, log: str) -> str:
        return (self.home / log).read_text()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """One for producers and the server, one for the cluster, with a cable between them."""
    mark = os.getpid()
    found = []
    homes = [tmp_path / "here", tmp_path / "there"]
    for number, hidden in enumerate(((homes[1],), (homes[0], Path("/dev/shm")))):
        homes[number].mkdir()
        found.append(Machine(f"clt-{mark}-{number}", f"10.77.0.{number + 1}", homes[number], hidden))
    try:
        for machine in found:
            _ip("netns", "add", machine.name)
        ends = [f"clt{mark}e{number}" for number in (1, 2)]
        _ip("link", "add", ends[0], "netns", found[0].name, "type", "veth", "peer", ends[1], "netns", found[1].name)
        for machine, end in zip(found, ends, strict=True):
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", end)
            for link in (end, "lo"):
                _ip("-n", machine.name, "link", "set", link, "up")
        yield found[0], found[1]
    finally:
        for machine in found:
            for process in machine.started:
                _kill_all(process)
            subprocess.run(["ip", "netns", "delete", machine.name], check=False, capture_output=True)


def _kill_all(process: subprocess.Popen[str]) -> None:
    """Kills a process and what it has started, and closes its pipe."""
    if process.poll() is None:
        for each in (*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)):
            each.send_signal(signal.SIGKILL)
    process.wait(60)
    if process.stdin is not None:
        process.stdin.close()


def test_a_cluster_reads_by_url_what_it_does_not_see(tmp_path: Path, machines: tuple[Machine, Machine]) -> None:
    """Each row is in the files once, and the token nowhere but in its own file."""
    here, there = machines
    token = _secrets(here, there)
    producer = here.start("producer", sys.executable, "-c", PRODUCER, "store", str(MESSAGES))
    wait_until(lambda: "the store runs" in here.said("producer"), "the store runs")
    command: list[str | Path] = [
        COMMITLOG,
        "serve",
        "orders=store",
        "--listen",
        f"{here.address}:4433",
        "--processes",
        "2",
    ]
    command += ["--certificate", "cert.pem", "--key", "key.pem", "--tokens", "tokens.json"]
    server = here.start("server", *command)
    wait_until(lambda: "Ctrl-C ends it" in here.said("server"), here.said("server") or "the server listens")
    cluster = {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
        "SPARK_LOCAL_IP": there.address,
        "SPARK_LOCAL_DIRS": str(there.home),
        "JDK_JAVA_OPTIONS": quick_options(),
    }
    master = _cluster(there, tmp_path / "spark/bin/spark-class", cluster)
    stop, url = there.home / "stop", f"commitlog+tls://{here.address}:4433/orders"
    driver = there.start(
        "driver",
        sys.executable,
        "-c",
        DRIVER,
        url,
        there.home,
        stop,
        master,
        **(cluster | {"SPARK_LOCAL_DIRS": "local"}),
    )

    def written() -> list[int]:
        assert driver.poll() is None, there.said("driver")
        assert producer.poll() is None, here.said("producer")
        files = sorted((there.home / "rows").glob("*.parquet"))
        committed = _committed(there.home / "rows", files)
        return [int(text) for file in committed for text in pq.read_table(file)["text"].to_pylist()]

    for kill in (MESSAGES // 5, MESSAGES // 2):
        wait_until(lambda: len(written()) >= kill, f"{kill} rows are written", patience=START_SECONDS)  # noqa: B023
        _kill_all(server)
        server = here.start("server", *command)
    wait_until(lambda: "sent" in here.said("producer"), "all is sent", patience=START_SECONDS)
    wait_until(lambda: len(written()) >= MESSAGES, "all rows are written", patience=START_SECONDS)
    stop.touch()
    assert producer.stdin is not None
    producer.stdin.close()
    assert producer.wait(60) == 0, here.said("producer")
    assert driver.wait(120) == 0, there.said("driver")
    assert sorted(_rows(there.home / "rows")) == list(range(MESSAGES))
    _check_secret(there.home, token)


def _secrets(here: Machine, there: Machine) -> str:
    """Makes certificates and a token; the other machine gets the token and the authority."""
    authority = trustme.CA()
    issued = authority.issue_cert(here.address)
    authority.cert_pem.write_to_path(str(there.home / "ca.pem"))
    issued.private_key_pem.write_to_path(str(here.home / "key.pem"))
    here.home.joinpath("cert.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    command = [str(COMMITLOG), "token", "add", str(here.home / "tokens.json"), "cluster", "--topics", "orders"]
    token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    there.home.joinpath("secret-token").write_text(token)
    there.home.joinpath("events").mkdir()
    return token


def _cluster(machine: Machine, spark_class: Path, environment: dict[str, str]) -> str:
    """Starts a standalone master and two workers of one core. Returns the master's URL."""

    def found(log: str, pattern: str) -> str:
        match = re.search(pattern, machine.said(log))
        return match[0] if match else ""

    host = ["--host", machine.address, "--webui-port", "0"]
    machine.start("master", spark_class, "org.apache.spark.deploy.master.Master", *host, "--port", "0", **environment)
    pattern = rf"spark://{re.escape(machine.address)}:[1-9]\d*"
    url = wait_until(lambda: found("master", pattern), "the master listens", patience=START_SECONDS)
    for name in ("one", "two"):
        options = ["--cores", "1", "--memory", "600m", "--work-dir", str(machine.home / f"work-{name}"), url]
        machine.start(name, spark_class, "org.apache.spark.deploy.worker.Worker", *host, *options, **environment)
        known = "Successfully registered with master"
        wait_until(lambda: found(name, known), "a worker is there", patience=START_SECONDS)  # noqa: B023
    return url


def _committed(directory: Path, files: list[Path]) -> list[Path]:
    """Those of the files that Spark's sink has committed: it keeps a log of them."""
    logs = sorted((directory / "_spark_metadata").glob("[0-9]*"))
    names = {name for log in logs for name in re.findall(r"[^/\"]+\.parquet", log.read_text())}
    return [file for file in files if file.name in names]


def _rows(directory: Path) -> list[int]:
    files = _committed(directory, sorted(directory.glob("*.parquet")))
    return [int(text) for file in files for text in pq.read_table(file)["text"].to_pylist()]


def _check_secret(home: Path, token: str) -> None:
    """The token is in its own file, and in copies of that which Spark has sent to its processes."""
    for file in home.rglob("*"):
        if file.is_file() and file.name != "secret-token":
            assert token.encode() not in file.read_bytes(), file
