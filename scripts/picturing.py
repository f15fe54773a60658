"""Makes the pictures of README.md: one of a run of the main job, one of `commitlog top`.

Both come from real runs. The texts in them name a store as a reader would (`data/events`), not by
the path of a temporary directory.
"""

from __future__ import annotations

import io
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import commitlog

IMAGES = Path(__file__).parent.parent / "docs/images"
COLORS = 64
"""The size of a picture's palette. A chart has few colours, and this halves its file."""
WATCHED_SECONDS = 65
"""How long the producers run before `top` looks at them.

Then the windows of ten seconds and a minute are full.
"""
RATES = (5_000, 800, 20)
"""Messages a second of each producer."""


def picture_of_a_run(directory: Path) -> None:
    """The picture that `commitlog ingest` draws of its run."""
    from PIL import Image

    options = ("--seconds", "20", "--report", directory / "run.json", "--store", directory / "store")
    command = [sys.executable, "-m", "commitlog.cli", "ingest", *options, "--out", directory / "out"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    with Image.open(directory / "run.png") as drawn:
        drawn.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(IMAGES / "run.png", optimize=True)


def picture_of_top(directory: Path) -> None:
    """What `commitlog top` prints of a store with a producer for each rate."""
    path = directory / "data/events"
    path.parent.mkdir()
    ended = multiprocessing.get_context("spawn").Event()
    with commitlog.Store.open(path):
        senders = [
            multiprocessing.get_context("spawn").Process(target=_send, args=(path, rate, ended)) for rate in RATES
        ]
        for sender in senders:
            sender.start()
        time.sleep(WATCHED_SECONDS)
        command = [sys.executable, "-m", "commitlog.cli", "top", path, "--interval", "2"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        ended.set()
        for sender in senders:
            sender.join()
    (IMAGES / "top.svg").write_text(_drawn("commitlog top data/events", said.replace(f"{directory}/", "")))


def _send(path: Path, rate: int, ended: Event) -> None:
    """Sends a hundred times a second, or less often if the rate is lower."""
    batch = max(rate // 100, 1)
    with commitlog.Producer(path) as producer:
        while not ended.wait(batch / rate):
            producer.send_batch("metrics", [b'{"cpu": 12.5, "memory": 47.1}'] * batch)


def _drawn(command: str, text: str) -> str:
    """A terminal with the command and what it said, as SVG that needs no font from elsewhere."""
    from rich.console import Console

    lines = text.rstrip().splitlines()
    console = Console(record=True, width=max(map(len, lines)), file=io.StringIO(), legacy_windows=False)
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    picture = console.export_svg(title=command, unique_id="top")
    picture = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE)


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commitlog-pictures-") as temporary:
        picture_of_a_run(Path(temporary))
        picture_of_top(Path(temporary))
    for picture in sorted(IMAGES.iterdir()):
        print(f"{picture.relative_to(IMAGES.parent.parent)}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
