"""A real browser for tests: Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
_SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--window-size=1200,1400")


class Page:
    """One page of the browser. It is that of `address` when `browse` gives it."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._rest = to_browser, from_browser, b""
        self._calls, self._session = 0, ""
        self.complaints: list[str] = []
        """What the page has logged as an error, and what it has thrown."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        call: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._to, json.dumps(call).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                data = os.read(self._from, 1 << 16)
                assert data, "the browser has ended"
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\0")
            said = json.loads(line)
            if said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            elif said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            if said.get("id") == self._calls:
                assert "error" not in said, said["error"]
                result: dict[str, Any] = said["result"]
                return result

    def go(self, address: str) -> None:
        self._call("Page.navigate", url=address)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def text(self, selector: str) -> str:
        """What one sees of the first element that the selector finds; empty where there is none."""
        return str(self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def see(self, selector: str, text: str) -> str:
        """Returns what is there, as soon as the text is in it."""
        wait_until(lambda: text in self.text(selector), f"{text!r} in {selector}")
        return self.text(selector)

    def resize(self, width: int, height: int) -> None:
        """Lets the page believe that its window has this size."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        """Lets the page believe that its user wants it `light` or `dark`."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def draw(self, path: Path) -> None:
        """Writes a picture of the page, for people."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def box(self, selector: str) -> list[float]:
        """Left, top, right and bottom of what one sees of an element within its parent."""
        found: list[float] = self.ask(
            f"(() => {{const e = document.querySelector('{selector}'); const r = e.getBoundingClientRect(); "
            "const p = e.parentElement.getBoundingClientRect(); "
            "return [r.left, r.top, Math.min(r.right, p.right), Math.min(r.bottom, innerHeight)]})()"
        )
        return found

    def check_seen(self, parts: Iterable[str], picture: Path) -> tuple[int, ...]:
        """Draws the page, and returns the colour of its background.

        Raises AssertionError unless nothing is wider than the window, and each part is in it, with
        marks that differ enough from the background.
        """
        from matplotlib.image import imread

        width = self.ask("innerWidth")
        assert self.ask("document.documentElement.scrollWidth <= innerWidth"), picture.name
        self.draw(picture)
        pixels = imread(picture)[:, :, :3] * 255
        for part in parts:
            left, top, right, bottom = (round(edge) for edge in self.box(part))
            assert 0 <= left < right <= width, (picture.name, part)
            away = abs(pixels[top:bottom, left:right] - pixels[5, 5]).max(axis=2)
            assert (away > 80).mean() > 0.001, f"{picture.name}: nothing can be seen of {part}"
        return tuple(round(float(channel)) for channel in pixels[5, 5])


@contextmanager
def browse(address: str, profile: Path) -> Iterator[Page]:
    """A browser of its own that shows the address."""
    assert BROWSER is not None
    its_in, to_browser = os.pipe()
    from_browser, its_out = os.pipe()
    # The protocol wants descriptors 3 and 4; the shell moves ours there.
    move = 'exec "$0" "$@" 3<&"$IN" 4>&"$OUT"'
    command = ["bash", "-c", move, BROWSER, *_SWITCHES, f"--user-data-dir={profile}"]
    environment = {**os.environ, "IN": str(its_in), "OUT": str(its_out)}
    process = subprocess.Popen(
        command, pass_fds=(its_in, its_out), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(its_in)
    os.close(its_out)
    try:
        page = Page(to_browser, from_browser)
        page.go(address)
        yield page
    finally:
        os.close(to_browser)  # the browser ends when its pipe does
        os.close(from_browser)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
