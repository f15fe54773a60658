"""Makes the pictures of the docs: the first hour, the demo, a run, `commitlog top`, a dashboard.

All come from real runs. The texts in them name a store as a reader would (`data/events`), not by
the path of a temporary directory.
"""

from __future__ import annotations

import io
import multiprocessing
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path

from rich.console import Console

import commitlog
from commitlog.cli.top_screen import Choice, render
from commitlog.demo.show import Demo
from commitlog.system.clock import SignalEvent
from commitlog.watching.health import health
from commitlog.watching.rates import rates
from commitlog.watching.snapshot import StoreWatch
from scripts.dashboard_picture import draw_dashboard
from scripts.first_hour import WIDTH as FIRST_HOUR_WIDTH
from scripts.first_hour import Step, draw, steps

IMAGES = Path(__file__).parent.parent / "docs/images"
COLORS = 64
"""The size of a picture's palette. A chart has few colours, and this halves its file."""
WATCHED_SECONDS = 30
"""How long the producers run before the picture is taken: as many looks has its line of rates."""
RATES = {"metrics": 5_000, "orders": 800, "alarms": 20}
"""Topic → messages a second of its producer."""
READERS = {"orders": "billing", "alarms": "pager"}
"""Topic → name of its reader."""
WIDTH, HEIGHT = 90, 24
KILLS = {90.0: "f", 100.0: "2"}
"""Seconds of the demo → the key that is pressed then."""
DEMO_SECONDS, DEMO_LINES = 110, 25


def picture_of_a_run(directory: Path) -> None:
    """The picture that `commitlog ingest` draws of its run."""
    options = ("--seconds", "20", "--report", directory / "run.json", "--store", directory / "store")
    command = [sys.executable, "-m", "commitlog.cli", "ingest", *options, "--out", directory / "out"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    _keep(directory / "run.png")


def picture_of_the_dashboard(directory: Path) -> None:
    """The dashboard of configs/, if this machine has Prometheus."""
    program = shutil.which("prometheus")
    if program is None:
        print("docs/images/dashboard.png stays: there is no prometheus on the PATH (Debian: apt install prometheus)")
        return
    draw_dashboard(program, directory, _sending, directory / "dashboard.png")
    _keep(directory / "dashboard.png")


def _keep(picture: Path) -> None:
    """Puts a picture with few colours into the docs."""
    from PIL import Image

    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(IMAGES / picture.name, optimize=True)


def picture_of_top(directory: Path) -> None:
    """The screen of `commitlog top`, for a store with a producer for each rate and two readers."""
    path = directory / "data/events"
    path.parent.mkdir()
    with commitlog.Store.open(path), _sending(path):
        picture = _watched(path, f"{directory}/")
    (IMAGES / "top.svg").write_text(picture)


def picture_of_the_demo(directory: Path) -> None:
    """The screen of `commitlog demo`, after a stage and a producer were killed."""
    began, keys = time.monotonic(), dict(KILLS)

    def pressed(seconds: float) -> str:
        time.sleep(seconds)
        return "".join(keys.pop(at) for at in [*keys] if time.monotonic() - began > at)

    (directory / "demo").mkdir()
    with chdir(directory), Demo(Path("data"), directory / "demo", SignalEvent(), pressed) as demo:
        demo.run(DEMO_SECONDS)
        screen = demo.screen(f"{DEMO_SECONDS} s of 120", FIRST_HOUR_WIDTH, DEMO_LINES)
        demo.judge()
    shown = "\n".join(["$ commitlog demo --store data", *screen])
    draw(Step([], "", f"{shown}\n"), IMAGES / "demo.svg", "commitlog demo")


def pictures_of_the_first_hour(directory: Path) -> None:
    """What the steps of docs/first-hour.md print."""
    for step in steps(directory):
        draw(step, IMAGES.parent / step.picture)


def _watched(path: Path, prefix: str) -> str:
    """What `top` shows after a while, without `prefix` before the store's path."""
    history: list[float] = []
    with ExitStack() as stack:
        watch = stack.enter_context(StoreWatch(path))
        readers = [
            stack.enter_context(commitlog.Reader(path, topic=topic, name=name, follow=True))
            for topic, name in READERS.items()
        ]
        earlier = watch.snapshot()
        for _ in range(WATCHED_SECONDS):
            time.sleep(1)
            for reader in readers:
                while reader.poll() is not None:
                    pass
                reader.commit()
            now = watch.snapshot()
            changes = rates(now, earlier)
            history.append(changes.messages_per_second)
            earlier = now
    now = replace(now, statistics=replace(now.statistics, path=now.statistics.path.removeprefix(prefix)))
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), legacy_windows=False)
    console.print(render(now, changes, health(now), history, Choice(), WIDTH, HEIGHT))
    picture = console.export_svg(title="commitlog top data/events", unique_id="top")
    picture = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE)


@contextmanager
def _sending(path: Path) -> Iterator[None]:
    """A producer for each of RATES, as a process of its own."""
    processes = multiprocessing.get_context("spawn")
    ended = processes.Event()
    senders = [processes.Process(target=_send, args=(path, topic, rate, ended)) for topic, rate in RATES.items()]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        ended.set()
        for sender in senders:
            sender.join()


def _send(path: Path, topic: str, rate: int, ended: Event) -> None:
    """Sends a hundred times a second, or less often if the rate is lower."""
    batch = max(rate // 100, 1)
    with commitlog.Producer(path) as producer:
        while not ended.wait(batch / rate * random.uniform(0.5, 1.5)):
            producer.send_batch(topic, [b'{"cpu": 12.5, "memory": 47.1}'] * batch)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commitlog-pictures-") as temporary:
        pictures_of_the_first_hour(Path(temporary))
    with tempfile.TemporaryDirectory(prefix="commitlog-pictures-") as temporary:
        picture_of_the_demo(Path(temporary))
    with tempfile.TemporaryDirectory(prefix="commitlog-pictures-") as temporary:
        picture_of_a_run(Path(temporary))
        picture_of_top(Path(temporary))
    with tempfile.TemporaryDirectory(prefix="commitlog-pictures-") as temporary:
        picture_of_the_dashboard(Path(temporary))
    for picture in sorted(IMAGES.iterdir()):
        print(f"{picture.relative_to(IMAGES.parent.parent)}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
