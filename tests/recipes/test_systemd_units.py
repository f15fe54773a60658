"""The units of `configs/` under a real systemd, the first process of namespaces of its own.

`systemd-analyze` only reads a unit. Whether the package gets along with what a unit forbids it is
seen where it runs.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
NAMESPACES = ["unshare", "--cgroup", "--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child"]
BOOT = r"""
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs "$1"
mkdir "$1"/python "$1"/source "$1"/packages "$1"/etc
mount --bind {prefix} "$1"/python
mount --bind {source} "$1"/source
mount --bind {packages} "$1"/packages
cp -a /etc/. "$1"/etc
rm -rf "$1"/etc/systemd/system "$1"/etc/commitlog
grep -q '^commitlog:' "$1"/etc/passwd || echo 'commitlog:x:4711:4711::/nonexistent:/bin/sh' >> "$1"/etc/passwd
grep -q '^commitlog:' "$1"/etc/group || echo 'commitlog:x:4711:' >> "$1"/etc/group
cat > "$1"/commitlog <<'END'
#!/bin/sh
export PYTHONPATH=/mnt/source:/mnt/packages LD_LIBRARY_PATH=/mnt/python/lib
exec /mnt/python/{python} -c 'import sys; sys.argv[0] = "/mnt/commitlog"; from commitlog.cli import main; main()' "$@"
END
chmod 755 "$1"/commitlog "$1"
mount --rbind "$1" /mnt
mount --bind /mnt/etc /etc
for place in /run /var/lib /var/log /var/backups /dev/shm /lib/systemd/system; do mount -t tmpfs tmpfs $place; done
chmod 1777 /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
for name in sysinit basic shutdown multi-user network-online timers; do
    printf '[Unit]\nDefaultDependencies=no\n' > /lib/systemd/system/$name.target
done
printf '[Unit]\nDefaultDependencies=no\nWants=steps.service\n' > /lib/systemd/system/steps.target
cat > /lib/systemd/system/steps.service <<END
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/bash "$1.steps" "$1.said"
END
exec env container=test {systemd} --system --unit=steps.target --show-status=no
"""
STEPS = r"""
exec > "$1" 2>&1
as_user() { runuser -u commitlog -- "$@"; }
store=/var/lib/commitlog/events
/mnt/commitlog systemd install events --system --root /mnt/image > /dev/null
mkdir -p /etc/systemd/system
cp -r /mnt/image/etc/* /etc
systemctl daemon-reload
systemctl start commitlog@events; echo "store $?"
seq 100 | as_user /mnt/commitlog produce $store numbers
install -d -o commitlog -m 700 /var/backups/commitlog
systemctl start commitlog-backup@events.timer commitlog-backup@events; echo "backup $?"
as_user /mnt/commitlog cat /var/backups/commitlog/events --topic numbers | wc -l
install -d -m 750 -g commitlog /etc/commitlog/events
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3 -subj /CN=localhost \
    -keyout /etc/commitlog/events/key.pem -out /etc/commitlog/events/certificate.pem 2> /dev/null
chgrp commitlog /etc/commitlog/events/*; chmod 640 /etc/commitlog/events/*
as_user /mnt/commitlog token add /var/lib/commitlog/tokens-events.json billing > /dev/null
systemctl start commitlog-serve@events; echo "serve $?"
systemctl start commitlog-metrics@events; echo "metrics $?"
until exec 3<> /dev/tcp/127.0.0.1/9877 || systemctl is-failed --quiet commitlog-metrics@events; do
    sleep 0.1
done 2> /dev/null
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep '^commitlog_up' <&3
systemctl reload commitlog@events; echo "reload $?"
as_user /mnt/commitlog health $store --full-percent 100
systemctl stop commitlog-serve@events commitlog-metrics@events commitlog@events; echo "stop $?"
systemctl show -p Result commitlog@events commitlog-serve@events commitlog-metrics@events
ls /dev/shm
echo end
systemctl exit --force 0
"""
WANTED = """\
store 0
100 messages sent to numbers, all on disk
backup 0
100
serve 0
metrics 0
commitlog_up{store="/var/lib/commitlog/events"} 1.0
reload 0
good: /var/lib/commitlog/events
stop 0
Result=success

Result=success

Result=success
end
"""


@pytest.mark.nightly
@pytest.mark.skipif(os.getuid() != 0 or not SYSTEMD.exists(), reason="needs root, and systemd's package")
def test_the_units_run_under_a_real_systemd(tmp_path: Path) -> None:
    """Store, backup, server and metrics do their work with all that the units forbid them."""
    tried = subprocess.run([*NAMESPACES, "mount", "-t", "cgroup2", "none", "/mnt"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no systemd can run here: {tried.stderr.strip()}")
    room, said = tmp_path / "room", tmp_path / "room.said"
    room.mkdir()
    (tmp_path / "room.steps").write_text(STEPS)
    prefix = Path(sys.base_prefix).resolve()
    boot = (
        BOOT.replace("{prefix}", str(prefix))
        .replace("{source}", str(ROOT))
        .replace("{packages}", site.getsitepackages()[0])
        .replace("{python}", str(Path(sys.executable).resolve().relative_to(prefix)))
        .replace("{systemd}", str(SYSTEMD))
    )
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([*NAMESPACES, "bash", "-c", boot, "boot", room], stdout=log, stderr=log) as systemd,
    ):
        try:
            wait_until(lambda: systemd.poll() is not None, "the end of the first process")
        finally:
            systemd.kill()
    assert said.exists(), (tmp_path / "log").read_text()
    assert said.read_text() == WANTED
