"""From settings to an exit code: the job, the verdict, the report with picture and page."""

from __future__ import annotations

from commitlog.errors import IngestError
from commitlog.ingest.dashboard import make_display
from commitlog.ingest.run_settings import Settings, check_packages


def run(settings: Settings) -> int:
    """0 when each message sent is in the Parquet files exactly once and nothing else went wrong.

    Raises CommitLogError where the job could not begin; then nothing is left behind. Raises
    IngestError if the report can't be written, and OSError if the verdict can't be shown.
    """
    check_packages()
    from commitlog.config_file import load_config
    from commitlog.ingest import page, picture, run_report
    from commitlog.ingest.job import Job
    from commitlog.ingest.verdict import judge
    from commitlog.spark.launching.java import find_java

    load_config(settings.config)
    find_java()
    display = make_display()
    job = Job(settings, display)
    try:
        job.run()
    finally:
        display.close()
    verdict = judge(
        settings.out,
        settings.run,
        {producer.number: producer.sent for producer in job.producers},
        {producer.number: producer.done for producer in job.producers},
    )
    facts = run_report.build(job, verdict)
    latencies = job.history.flushed_latencies, job.history.spark_latencies
    for line in run_report.lines(facts):
        display.say(line)
    try:
        run_report.write(facts, settings.report)
        picture.draw(facts, *latencies, settings.picture)
        page.write(facts, picture.svg(facts, *latencies), settings.page)
    except OSError as error:
        raise IngestError(f"--report {settings.report}: {error.strerror}; the verdict stands") from error
    if display.error is not None:
        raise display.error
    return 0 if verdict.exactly_once and not job.errors else 1
