"""All checks, in the order that `commitlog doctor` prints them."""

from __future__ import annotations

from collections.abc import Iterator

from commitlog.doctor import interpreter, machine, packages, spark, store_checks
from commitlog.doctor.finding import Code, Finding, Surroundings, problem
from commitlog.errors import CommitLogError

CHECKS = (
    interpreter.python,
    interpreter.bytecode,
    packages.packages,
    interpreter.foreign_modules,
    interpreter.native_core,
    machine.kernel,
    machine.shared_memory,
    machine.limits,
    machine.clock_source,
    machine.strays,
    spark.java,
    spark.spark_home,
    spark.spark_jar,
    spark.worker_python,
    store_checks.file_system,
    store_checks.store,
)


def examine(here: Surroundings) -> Iterator[Finding]:
    """The findings of all checks.

    A check that the system or a damaged store stops is a finding too.
    """
    for check in CHECKS:
        try:
            yield from check(here)
        except (CommitLogError, OSError) as error:
            yield problem(
                Code.CHECK,
                f"the check of {check.__name__.replace('_', ' ')} ended: {error}",
                "docs/recover.md has the errors by name",
            )
