"""Reads the rows of a Spark task.

This runs in a pooled worker, which may be on another machine and may run the same task again much
later. So it opens the store itself, and checks that it is the store that was planned for.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from commitlog.columns.segments import SEGMENTS
from commitlog.columns.slice_reader import ReadPlan, read_slices
from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import DataLoss, StoreNotFound
from commitlog.reading.view import is_rocketmq_root

_settled = False

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 128 << 20
_LARGEST_KEPT_BYTES = 32 << 20


class Task(InputPartition):
    """What one Spark task reads."""

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__(None)
        self.plan = plan


def read_task(task: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Reads the task's rows.

    Raises StoreNotFound, DataLoss, CorruptRecord, DamagedFile, MissingCodec.
    """
    if not isinstance(task, Task):
        return  # nothing was planned: Spark makes one partition even then
    _prepare_process()
    SEGMENTS.forget_gone()
    _check_path(task.plan)
    yield from read_slices(task.plan, schema, SEGMENTS)


def _prepare_process() -> None:
    """Prepares the process for many batches, once.

    It takes all imported objects out of garbage collection, which would walk them in each task. And
    it lets glibc keep the memory that a batch has freed. By default the memory goes back to the
    system, and the page faults of getting it again took a tenth of the time of a query.
    """
    global _settled
    if _settled:
        return
    gc.collect()
    gc.freeze()
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # glibc's
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    _settled = True


def _check_path(plan: ReadPlan) -> None:
    """Raises StoreNotFound or DataLoss if the path is not the store that was planned for."""
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
