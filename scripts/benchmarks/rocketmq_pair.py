"""A real RocketMQ: a name server, a master that waits for its slave, and the slave.

All are paused while others have their turn.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.harness import Bench
from scripts.benchmarks.java_servers import HERE, Servers, free_ports, jars, servers, why_not

NAME = "RocketMQ"
POM = HERE / "rocketmq" / "broker.xml"
_PRODUCER = HERE / "rocketmq" / "OneAtATime.java"
_BROKER = """
brokerName=bench
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
listenPort={port}
haListenPort={ha_port}
namesrvAddr=127.0.0.1:{names}
storePathRootDir={room}/store
storePathCommitLog={room}/store/commitlog
flushDiskType=SYNC_FLUSH
diskMaxUsedSpaceRatio=99
# it is paused between its turns, and must not take that for a failure
haHousekeepingInterval=3600000
serverChannelMaxIdleTimeSeconds=3600
"""
_MASTER = """
brokerId=0
brokerRole=SYNC_MASTER
# of RocketMQ 5: with 1, which is its default, a SYNC_MASTER waits for no slave
inSyncReplicas=2
totalReplicas=2
"""
_SLAVE = """
brokerId=1
brokerRole=SLAVE
"""


class Pair:
    """A running pair, and a producer that is warm."""

    def __init__(self, running: Servers, producer: subprocess.Popen[bytes]) -> None:
        self._servers, self._producer = running, producer

    def send(self, count: int) -> list[int]:
        """Sends messages one by one. Returns the nanoseconds from each send() to its answer.

        Raises RuntimeError where a message is not on the slave, too.
        """
        assert self._producer.stdin is not None
        assert self._producer.stdout is not None
        self._servers.wake()
        try:
            self._producer.stdin.write(b"%d\n" % count)
            self._producer.stdin.flush()
            lines = (line.split() for line in self._producer.stdout)
            took = next((words[1:] for words in lines if words[:1] == [b"took"]), [b"it has ended"])  # it logs, too
        finally:
            self._servers.pause()
        if len(took) != count:
            raise RuntimeError(f"RocketMQ's producer gave up: {b' '.join(took).decode(errors='replace')}")
        return list(map(int, took))


@contextlib.contextmanager
def pair(bench: Bench, size: int) -> Iterator[Pair | None]:
    """Brokers with empty stores in the bench's directory, paused. Messages have `size` bytes.

    Where there can't be any it gives None and says why.
    """
    reason = why_not(POM) or (
        "" if shutil.which("javac") else "no JDK on PATH; on Debian or Ubuntu: apt install default-jdk"
    )
    if reason:
        bench.skip(NAME, reason)
        yield None
        return
    names, *ports = free_ports(5)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(servers())
        command = [*_java(stack.enter_context(bench.room())), str(_PRODUCER), str(names), str(size)]
        producer = running.start(command, names, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for role, port, ha_port in ((_MASTER, *ports[:2]), (_SLAVE, *ports[2:])):
            room = stack.enter_context(bench.room())
            properties = room / "broker.conf"
            properties.write_text((_BROKER + role).format(port=port, ha_port=ha_port, names=names, room=room))
            running.start([*_java(room), "org.apache.rocketmq.broker.BrokerStartup", "-c", str(properties)], port)
        running.pause()
        yield Pair(running, producer)


def _java(room: Path) -> list[str]:
    return ["java", "-Xmx1g", "-Xms1g", f"-Duser.home={room}", f"-Drocketmq.home.dir={room}", "-cp", jars(POM) or ""]
