"""What mypy makes of a user's program: a right one passes, each mistake of a wrong one is found.

Nobody runs it. mypy checks it with all other files, and names an `ignore` that it does not need.
"""

# ruff: noqa: B018, F841  the values are for mypy alone

from __future__ import annotations

import asyncio

import commitlog


def right() -> None:
    with commitlog.Store.open("s", config={"store": {"flush_disk_type": "SYNC_FLUSH"}}) as store:
        producer: commitlog.Producer = store.producer()
        receipt: commitlog.Receipt = producer.send("t", b"x", key="k", headers={"a": "b"}, tags="g")
        batch: commitlog.BatchReceipt = producer.send_batch("t", [b"x", b"y"], keys=["a", None])
        number: int = receipt.partition + receipt.offset + len(batch)
        level: commitlog.Level = "committed"
        status: commitlog.PutMessageStatus = receipt.wait(level, timeout=5)
        lane: commitlog.LaneStatistics = producer.statistics()
        whole: commitlog.StoreStatistics = store.statistics()
        rates: tuple[commitlog.Throughput, ...] = whole.throughput
        last: commitlog.Message | None = producer.last("t")
        report: commitlog.StopReport = store.close()
        config = commitlog.Config(store=commitlog.config.StoreConfig(max_lanes=2))
    try:
        for message in commitlog.Reader("s", topic="t"):
            text: str = message.topic + str(message.partition) + message.value.decode() + message.headers["a"]
    except commitlog.errors.StoreNotFound as error:
        base: commitlog.CommitLogError = error

    async def wait() -> commitlog.PutMessageStatus:
        return await receipt

    print(asyncio.run(wait()), commitlog.__version__)


def wrong(producer: commitlog.Producer) -> None:
    commitlog.Prodcuer("s")  # type: ignore[attr-defined]
    commitlog.erors  # type: ignore[attr-defined]
    producer.send("t", "text")  # type: ignore[arg-type]
    producer.send_batch("t", [b"x"], "key")  # type: ignore[call-arg]
    producer.send("t", b"x", properties={})  # type: ignore[call-arg]
    producer.send_batch("t", "text")  # type: ignore[arg-type]
    producer.send("t", b"x").wait("flusht")  # type: ignore[arg-type]
    len(producer.send("t", b"x"))  # type: ignore[arg-type]
    producer.send("t", b"x")[0]  # type: ignore[index]
    producer.last("t").value  # type: ignore[union-attr]
