"""Reads the rows of a Spark task.

This runs in a pooled worker, which may be on another machine and may run the same task again much
later. So a task opens the store itself, and checks that it is the store of the plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql.datasource import InputPartition

from commitlog.columns.mapped_segments import SEGMENTS
from commitlog.columns.process_memory import keep_memory
from commitlog.columns.read_plan import ReadPlan
from commitlog.columns.slice_reader import read_slices
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DataLoss, StoreNotFound
from commitlog.planning.address import Address
from commitlog.reading.view import is_rocketmq_root
from commitlog.remote.remote_rows import read_remote


class Task(InputPartition):
    """The part of a store that one Spark task reads."""

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__(None)
        self.plan = plan


class RemoteTask(InputPartition):
    """The part of a served store that one Spark task reads, and the port that it asks first."""

    def __init__(self, plan: ReadPlan, address: Address, port: int | None) -> None:
        super().__init__(None)
        self.plan, self.address, self.port = plan, address, port


def read_task(task: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Reads the task's rows.

    Raises StoreNotFound, DataLoss, CorruptRecord, DamagedFile, MissingCodec, and ServerError for a
    served store.
    """
    if isinstance(task, RemoteTask):
        keep_memory()
        yield from read_remote(task.plan, schema, with_files_found(task.address), task.port)
        return
    if not isinstance(task, Task):
        return  # nothing was planned: Spark makes one partition even then
    keep_memory()
    SEGMENTS.forget_gone()
    _check_path(task.plan)
    yield from read_slices(task.plan, schema, SEGMENTS)


def with_files_found(address: Address) -> Address:
    """The address with the files of its credentials as this process finds them.

    A file that is not at its place may be one that was given to Spark (`spark-submit --files`).
    """
    known = address.credentials
    names = ("token_file", "ca_file", "cert_file", "key_file")
    return address.with_credentials(replace(known, **{name: _found(getattr(known, name)) for name in names}))


def _found(file: str | None) -> str | None:
    if file is None or Path(file).exists():
        return file
    with contextlib.suppress(AssertionError):  # without Spark there are no files of it
        sent = SparkFiles.get(Path(file).name)
        return sent if Path(sent).exists() else file
    return file


def _check_path(plan: ReadPlan) -> None:
    """Raises StoreNotFound or DataLoss if the path is not the store of the plan."""
    unseen = f"this executor does not see {plan.path}: mount it at the same path on every executor's machine"
    if plan.one_log:
        if not is_rocketmq_root(plan.path):
            raise StoreNotFound(unseen)
        return
    try:
        facts = StoreDirectory(plan.path).load()
    except StoreNotFound:
        raise StoreNotFound(unseen) from None
    if facts.id != plan.store_id:
        raise DataLoss(f"{plan.path} was deleted and made again since this read was planned; load it anew")
