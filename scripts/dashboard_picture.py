"""Draws configs/grafana-dashboard.json with what a real Prometheus answers to its panels.

Prometheus (`prometheus` on the PATH) scrapes a store that has it all: producers, readers, a server,
a replica, and a stage that is killed. Each panel is asked as Grafana asks it, and drawn at its
place by matplotlib. So the picture shows what the panels say, and not how Grafana looks.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import commitlog

DASHBOARD = Path(__file__).parent.parent / "configs/grafana-dashboard.json"
SCRAPE_SECONDS = 1
RATE_INTERVAL = f"{4 * SCRAPE_SECONDS}s"
"""`$__rate_interval` in Grafana: four scrapes, so a rate has two of them where one failed."""
WATCHED_SECONDS = 120
KILLED_AFTER = 60
"""Seconds until the flusher is killed: the picture shows a restart, too."""
STARTS_WITHIN = 60
"""Seconds until Prometheus has to answer."""
UNIT_WIDTH, UNIT_HEIGHT = 0.6, 0.33
"""Inches of a unit of the dashboard's grid, which is 24 units wide."""
LEGEND_MAX = 6
"""Entries of a legend. Further series are drawn, and counted."""
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_COLOURS = {"green": "#2a7f3f", "orange": "#c26a00", "red": "#b3261e"}
_STYLE = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}


class Series(NamedTuple):
    """One line of a panel: its name in the legend, its times (seconds), its values."""

    name: str
    times: list[float]
    values: list[float]


class Prometheus:
    """A running Prometheus that scrapes one target on this machine.

    Its data goes into `directory`. Raises TimeoutError when it does not answer.
    """

    def __init__(self, program: str, directory: Path, target: int) -> None:
        self._port = free_port()
        settings = directory / "prometheus.yml"
        settings.write_text(
            f"global: {{scrape_interval: {SCRAPE_SECONDS}s}}\n"
            f"scrape_configs: [{{job_name: commitlog, static_configs: "
            f"[{{targets: ['127.0.0.1:{target}'], labels: {{instance: db1}}}}]}}]\n"
        )
        command = (
            program,
            f"--config.file={settings}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=error",
        )
        self.command = [str(part) for part in command]

    def await_first_scrape(self) -> None:
        end = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < end:
            try:
                if self._asked("query", query="commitlog_up"):
                    return
            except URLError:
                pass  # it does not listen yet
            time.sleep(0.2)
        raise TimeoutError(f"Prometheus has no sample of the store after {STARTS_WITHIN} s")

    def series(self, target: dict[str, Any], start: float, end: float) -> list[Series]:
        """What a target of a panel gets between two times, with the legend's names."""
        expression = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
        expression = expression.replace("$store", ".*").replace("$instance", ".*")
        if target.get("instant"):
            answer = self._asked("query", query=expression, time=end)
        else:
            answer = self._asked("query_range", query=expression, start=start, end=end, step=SCRAPE_SECONDS)
        found = []
        for one in answer:
            name = target["legendFormat"]
            for label, value in one["metric"].items():
                name = name.replace("{{" + label + "}}", value)
            points = [(float(at) - start, float(value)) for at, value in one.get("values", [one.get("value")])]
            found.append(Series(name, [at for at, _ in points], [value for _, value in points]))
        return found

    def _asked(self, what: str, **parameters: Any) -> list[dict[str, Any]]:
        with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{what}?{urlencode(parameters)}", timeout=30) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def free_port() -> int:
    """A port of this machine that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of its own, ended with SIGTERM. What it prints goes into `log`."""
    with log.open("ab") as printed:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def draw_dashboard(program: str, directory: Path, sending: Callable[[Path], Any], picture: Path) -> None:
    """Runs a store and Prometheus in `directory` for two minutes, and draws the dashboard.

    `program` is Prometheus, and `sending` a context in which producers send to the store of a path.
    """
    path, log = directory / "data/events", directory / "commands.log"
    path.parent.mkdir(parents=True)
    certificate = _certificates(directory)
    replicas, metrics = free_port(), free_port()
    replication = {"listen": f"127.0.0.1:{replicas}", **certificate}
    shown = [f"--{name}={file}" for name, file in certificate.items()]
    commands = (
        ("metrics", path, "--listen", metrics),
        ("serve", path, "--listen", "127.0.0.1:0"),
        ("replica", directory / "copy", "--from", f"localhost:{replicas}", "--name", "db2", *shown),
    )
    prometheus = Prometheus(program, directory, metrics)
    with ExitStack() as stack:
        store = stack.enter_context(commitlog.Store.open(path, config={"replication": replication}))
        stack.enter_context(sending(path))
        for command in commands:
            arguments = [sys.executable, "-P", "-m", "commitlog", *map(str, command)]
            stack.enter_context(running(arguments, log if command[0] != "serve" else directory / "serve.log"))
        stack.enter_context(running(prometheus.command, log))
        prometheus.await_first_scrape()
        start = time.time()
        _use(store, path, directory / "serve.log")
        end = time.time()
        panels = json.loads(DASHBOARD.read_text())["panels"]
        answers = {
            panel["id"]: [line for target in panel.get("targets", ()) for line in prometheus.series(target, start, end)]
            for panel in panels
        }
    _draw(panels, answers, f"{directory}/", picture)


def _certificates(directory: Path) -> dict[str, str]:
    """Files with a certificate for this machine, its key, and their authority."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {name: str(directory / f"{name}.pem") for name in ("certificate", "key", "authority")}
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["authority"])
    return files


def _use(store: commitlog.Store, path: Path, served: Path) -> None:
    """Reads by name and through the server while the producers send, and kills the flusher once."""
    killed = False
    with (
        commitlog.Reader(path, topic="orders", name="billing", follow=True) as quick,
        commitlog.Reader(path, topic="metrics", name="archive", follow=True) as slow,
    ):
        for second in range(WATCHED_SECONDS):
            time.sleep(1)
            for reader, many in ((quick, 10_000), (slow, 3_000)):
                for _ in range(many):
                    if reader.poll() is None:
                        break
                reader.commit()
            for url in served.read_text().split()[:1]:  # none while the server starts
                with commitlog.read_arrow(url, "alarms") as rows:
                    rows.read_all()
            if second >= KILLED_AFTER and not killed:
                (flusher,) = (stage for stage in store.statistics().stages if stage.stage == "flusher")
                os.kill(flusher.pid, signal.SIGKILL)
                killed = True


def _draw(panels: list[dict[str, Any]], answers: dict[int, list[Series]], prefix: str, picture: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(24 * UNIT_WIDTH, height * UNIT_HEIGHT), dpi=90, facecolor="white")
    with rc_context(_STYLE):
        for panel in panels:
            place = panel["gridPos"]
            x, top = place["x"] / 24, 1 - place["y"] / height
            series = [line._replace(name=line.name.replace(prefix, "")) for line in answers[panel["id"]]]
            if panel["type"] == "row":
                figure.text(0.01, top - 0.7 / height, panel["title"], fontsize=11, weight="bold")
                continue
            figure.text(x + 0.01, top - 0.7 / height, panel["title"], fontsize=8.5, weight="bold")
            if panel["type"] == "stat":
                _draw_value(figure, panel, series, (x + place["w"] / 48, top - 2.3 / height))
                continue
            lines = min(len(series), LEGEND_MAX + 1)
            bottom = top - (place["h"] - 0.6 - 0.42 * lines) / height
            axes = figure.add_axes((x + 0.035, bottom, place["w"] / 24 - 0.05, top - 1.1 / height - bottom))
            _draw_series(axes, panel, series)
        figure.savefig(picture)


def _draw_value(figure: Any, panel: dict[str, Any], series: list[Series], where: tuple[float, float]) -> None:
    """The last value, as a panel of one value has it."""
    defaults = panel["fieldConfig"]["defaults"]
    text, colour = "No data", "grey"
    if series:
        value = series[0].values[-1]
        text, colour = _shown(value, defaults["unit"]), _COLOURS["green"]
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is not None and value >= step["value"]:
                colour = _COLOURS[step["color"]]
        for mapping in defaults["mappings"]:
            named = mapping["options"].get(f"{value:g}")
            if named:
                text, colour = named["text"], _COLOURS[named["color"]]
    figure.text(*where, text, fontsize=20, weight="bold", color=colour, ha="center", va="center")


def _draw_series(axes: Any, panel: dict[str, Any], series: list[Series]) -> None:
    """Lines, stacked lines or bars, as the panel wants them, and the legend below."""
    defaults = panel["fieldConfig"]["defaults"]
    drawn = defaults["custom"]
    if not series:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", va="center", color="grey")
        axes.set_xticks([])
        axes.set_yticks([])
        return
    below: dict[float, float] = {}
    for number, line in enumerate(series):
        label = line.name if number < LEGEND_MAX else None
        if number == LEGEND_MAX:
            label = f"and {len(series) - LEGEND_MAX} more"
        stacked = drawn["stacking"]["mode"] == "normal"
        bottoms = [below.get(at, 0.0) if stacked else 0.0 for at in line.times]
        tops = [
            bottom + (0 if math.isnan(value) else value) for bottom, value in zip(bottoms, line.values, strict=True)
        ]
        colour = f"C{number % 10}"
        if drawn["drawStyle"] == "bars":
            axes.bar(line.times, line.values, SCRAPE_SECONDS, bottoms, color=colour, label=label)
        else:
            values = tops if stacked else line.values
            axes.fill_between(line.times, bottoms, tops, color=colour, alpha=drawn["fillOpacity"] / 100, linewidth=0)
            axes.plot(line.times, values, color=colour, linewidth=0.9, label=label)
        below.update(zip(line.times, tops, strict=True))
    axes.set_xlim(0, WATCHED_SECONDS)
    if defaults.get("min") == 0:
        axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=6.5, length=2)
    axes.yaxis.set_major_formatter(lambda value, _: _shown(value, defaults["unit"]))
    axes.legend(loc="upper left", bbox_to_anchor=(-0.05, -0.07), fontsize=6.5, frameon=False, handlelength=1.2)


def _shown(value: float, unit: str) -> str:
    """A number with the unit that the panel names, in Grafana's words for units."""
    if unit == "percentunit":
        return f"{value * 100:g} %"
    if unit == "s":
        return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"
    ending = {"bytes": "B", "Bps": "B/s", "cps": "/s"}.get(unit, "")
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{ending}"
    return f"{value:.3g} {ending}".strip()
