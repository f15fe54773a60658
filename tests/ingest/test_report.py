"""The report says what happened, as JSON, in words, as a picture and as a page.

This includes runs that went wrong or never began.
"""

from __future__ import annotations

import io
import re
import time
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.ingest import page, picture, run_report
from commitlog.ingest.dashboard import PlainLines
from commitlog.ingest.history import History
from commitlog.ingest.job import Job
from commitlog.ingest.meter import STEPS, Reading
from commitlog.ingest.resources import GROUPS
from commitlog.ingest.run_settings import choose
from commitlog.ingest.verdict import EXACTLY_ONCE, Verdict
from commitlog.native import description
from commitlog.shm.counters import Histogram
from tests.browser import BROWSER, browse
from tests.nightly import with_nightly

SECONDS = 20


@pytest.fixture(scope="module", autouse=True)
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lets matplotlib draw once before the tests begin.

    It keeps the font files open that it has drawn with, which must not look like a leak of a test.
    """
    from matplotlib.figure import Figure

    figure = Figure()
    figure.text(0, 0, "plain")
    figure.text(0, 0, "bold", weight="bold")
    figure.savefig(tmp_path_factory.mktemp("fonts") / "fonts.png")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    settings = choose(inputs=[], out=tmp_path / "out", store=tmp_path / "store", report=tmp_path / "r.json")
    return Job(settings, PlainLines(io.StringIO()))


def reading(at: float, messages: float, restarts: int = 0) -> Reading:
    return Reading(
        at=at,
        messages=dict.fromkeys(STEPS, messages),
        bytes=dict.fromkeys(STEPS, int(messages * 100)),
        buffers=6,
        buffers_free=4,
        syncs=Histogram((0, 10, 5)),
        pids={},
        restarts={"committer": restarts},
        faults={},
    )


def batch(number: int, total: int) -> dict[str, Any]:
    """What the query reports after a batch."""
    return {
        "id": number,
        "rows": 2000,
        "total": total,
        "seconds": 1.0,
        "p50_ms": 10.0,
        "p99_ms": 20.0,
        "latencies": {"buckets": [], "counts": [], "highest_ms": 0.0},
        "grids": [],
    }


def fill(job: Job) -> None:
    """A run of some seconds: a thousand messages a second, Spark a batch every two, one restart."""
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commitlog.ingest.history.time", SimpleNamespace(monotonic=lambda: now))
        history = job.history
        history.start_clock()
        for step in range(SECONDS * 5 + 1):
            now = history.began + step / 5
            history.add_reading(reading(step / 5, step * 200.0, restarts=int(step > 50)))
            if step % 10 == 9:
                latencies = {"buckets": [500], "counts": [2000], "highest_ms": 20.0}
                history.add_batch(batch(step, (step + 1) * 200) | {"latencies": latencies})
    history.flushed_latencies.add([1.0, 2.0, 50.0])
    job.sending_seconds = float(SECONDS)


def test_a_run_in_numbers(job: Job, tmp_path: Path) -> None:
    """Rates of every stage, in bins of a second, add up to the messages. The picture is a PNG."""
    fill(job)
    facts = run_report.build(job, Verdict(EXACTLY_ONCE, 20_000, ()))
    rates = facts["rates"]
    assert rates["seconds"] == [float(second) for second in range(1, SECONDS + 1)]
    assert rates["sent"] == rates["flushed"] == [1000.0] * SECONDS
    assert sum(rates["spark"]) == pytest.approx(20_000)
    assert facts["lag"] == {"sent": 0, "committed": 0, "flushed": 0, "dispatched": 0, "spark": 0}
    assert facts["restarts"] == {"committer": 1}
    assert facts["latency_ms"]["flushed"]["max"] == 50
    assert facts["spark"]["batches"] == 10
    picture.draw(facts, job.history.flushed_latencies, job.history.spark_latencies, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    run_report.write(facts, tmp_path / "r.json")
    assert (tmp_path / "r.json").stat().st_size > 1000


def test_a_run_in_words(job: Job) -> None:
    """What is wrong stands first, and what is left unread is said."""
    fill(job)
    job.history.spark_rows = 19_000
    job.errors.append("the Spark process died")
    text = "\n".join(
        run_report.lines(run_report.build(job, Verdict("producer 0: 7 of 9 messages missing", 19_000, ())))
    )
    assert text.startswith("verdict      producer 0: 7 of 9 messages missing")
    assert f"\ncore         {description}\n" in text
    assert "Spark has not read 1,000 messages" in text
    assert "the committer had died" in text
    assert "error        the Spark process died" in text


@pytest.mark.parametrize("verdict", with_nightly(["producer 0: " + "very " * 100 + "wrong"], [EXACTLY_ONCE]))
def test_a_run_that_never_began(job: Job, tmp_path: Path, verdict: str) -> None:
    """No message, no batch, no second: a report and a picture all the same."""
    facts: dict[str, Any] = run_report.build(job, Verdict(verdict, 0, ()))
    picture.draw(facts, job.history.flushed_latencies, job.history.spark_latencies, tmp_path / "r.png")
    assert run_report.lines(facts)
    assert (tmp_path / "r.png").exists()


def plots(job: Job, facts: dict[str, Any]) -> str:
    return picture.svg(facts, job.history.flushed_latencies, job.history.spark_latencies)


def test_a_run_as_a_page(job: Job, tmp_path: Path) -> None:
    """The verdict, tables with the numbers of each stage, and the panels; nothing from outside."""
    fill(job)
    facts = run_report.build(job, Verdict(EXACTLY_ONCE, 20_000, ()))
    page.write(facts, plots(job, facts), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<p class="verdict good">✓ exactly once' in text
    assert '<th scope="row">read by Spark</th><td>20,000</td><td>1,600</td><td>600</td><td>0</td>' in text
    assert "the committer had died" in text
    assert "Rate of each stage" in text
    assert str(job.settings.store) in text
    assert not re.search(r"""(src|href)=["'](?!#)|@import|url\((?!#)|<script""", text)


def test_processes_that_did_not_run_are_not_shown(job: Job) -> None:
    """A run without a server: neither the picture nor the table has one."""
    fill(job)
    facts = run_report.build(job, Verdict(EXACTLY_ONCE, 20_000, ()))
    memory = {group: [0 if group == "server" else 10**6] * 2 for group in GROUPS}
    facts["resources"] = {"seconds": [1, 2], "cores": dict.fromkeys(GROUPS, [0.5] * 2), "memory_bytes": memory}
    drawn = plots(job, facts)
    assert "spark: " in drawn
    assert "server: " not in drawn
    text = page.page(facts, drawn)
    assert '<th scope="row">spark</th>' in text
    assert '<th scope="row">server</th>' not in text


@pytest.mark.parametrize("verdict", with_nightly(["producer 0: <7> of 9 messages missing"], [EXACTLY_ONCE]))
def test_a_page_of_a_run_that_went_wrong(job: Job, verdict: str) -> None:
    """What is wrong is red and stands first. Whatever is in it, it is text, not HTML."""
    job.errors.append("</p><script>alert($run)</script>")
    job.history.event("a $title & <b>")
    facts = run_report.build(job, Verdict(verdict, 0, ()))
    text = page.page(facts, plots(job, facts))
    assert '<p class="verdict bad">' in text
    assert escape(verdict) in text
    assert '<p class="bad">&lt;/p&gt;&lt;script&gt;alert($run)&lt;/script&gt;</p>' in text
    assert "a $title &amp; &lt;b&gt;" in text


@pytest.mark.skipif(BROWSER is None, reason="no browser here")
def test_a_page_in_a_browser(job: Job, tmp_path: Path) -> None:
    """It can be read in a narrow window too: what is wide scrolls in itself."""
    fill(job)
    facts = run_report.build(job, Verdict(EXACTLY_ONCE, 20_000, ()))
    page.write(facts, plots(job, facts), tmp_path / "r.html")
    with browse((tmp_path / "r.html").as_uri(), tmp_path / "profile") as shown:
        shown.see(".verdict", "exactly once")
        shown.see("figure", "Latency of a message")
        for scheme, background in (("light", (255, 255, 255)), ("dark", (22, 25, 29))):
            shown.scheme(scheme)
            for width in (400, 1300):
                shown.resize(width, 3500)
                parts = (".verdict", "figure svg", "#legend_1 text", "#xtick_1 text", "table", "td", "th")
                assert shown.check_seen(parts, tmp_path / f"{scheme}-{width}.png") == background
        assert not shown.complaints


def test_the_dashboards_numbers(job: Job) -> None:
    """Speeds are those of the last seconds; Spark is behind what is flushed."""
    fill(job)
    snapshot = job.snapshot()
    assert [step.name for step in snapshot.steps] == ["wrote", "committed", "flushed", "dispatched", "read by Spark"]
    assert snapshot.steps[0].per_second == pytest.approx(1000)
    assert snapshot.steps[0].megabytes_per_second == pytest.approx(0.1)
    assert snapshot.steps[-1].behind == 0
    assert snapshot.sync_p50_ms is not None
    assert snapshot.events[0].endswith("the committer had died and was started again")


def test_sparks_rate_between_two_batches() -> None:
    """It does not fall to 0 while batches come, and it falls when Spark stands still."""
    now = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commitlog.ingest.history.time", SimpleNamespace(monotonic=lambda: now))
        history = History()
        history.start_clock()
        assert history.spark_rate() == 0
        rates = []
        for tenth in range(1, 201):
            now = tenth / 10
            if tenth % 40 == 0:  # a batch every 4 s
                history.add_batch(batch(tenth, tenth * 50))
            rates.append(history.spark_rate())
        assert rates[38:] == [0.0] + [pytest.approx(500)] * 161
        now += 40
        assert history.spark_rate() == pytest.approx(50)
        history.start_clock()
        assert history.spark_rate() == 0
