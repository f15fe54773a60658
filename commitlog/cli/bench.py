"""`commitlog bench STORE`: how fast a store is here, measured in a temporary one beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commitlog.cli.arguments import STORE_VARIABLE, JsonOption, duration, print_json, print_lines, size
from commitlog.clock import SYSTEM_CLOCK
from commitlog.quantities import counted

if TYPE_CHECKING:
    from commitlog.store import Store

_TOPIC = "bench"
_APPEND_BYTES_MAX = 1 << 29
"""So much each append run writes at most, so that a quick machine does not fill its disk."""
_BATCH = 100
_SECONDS_MIN, _SECONDS_MAX = 0.1, 600.0
_PARTS = 4
_POLL_SECONDS = 0.01
_LABELS = {
    "append": "append, one by one",
    "batch_append": f"append, {_BATCH} at a time",
    "flush": "send until flushed",
    "read": "read",
}


def bench(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="A store, or the place for one.", envvar=STORE_VARIABLE)
    ],
    seconds: Annotated[
        float,
        typer.Option(
            parser=duration, metavar="TIME", show_default=False, help="How long in all, as in 8 or 30s.  [default: 8s]"
        ),
    ] = 8.0,
    value_size: Annotated[
        int, typer.Option("--size", parser=size, metavar="SIZE", help="Bytes of a message's value, as in 100 or 1KiB.")
    ] = 100,
    json: JsonOption = False,
) -> None:
    """Measure how fast a store is here: append, flush, read.

        commitlog bench data/events
        commitlog bench data/events --size 1KiB --seconds 30s

    It writes, up to 1 GiB and for some seconds, to a temporary store beside STORE, and removes it.
    That has the configuration of STORE, or the default where there is none yet. STORE itself is not
    touched.
    """
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
        raise typer.BadParameter(f"--seconds {seconds:g}: allowed are times from 100ms to 10m")
    from commitlog.native import description

    with _store_beside(store) as temporary:
        print_lines([f"writes for about {seconds:g} s to {temporary.path}, which is then removed"], err=True)
        found = _measure(temporary, seconds / _PARTS, value_size)
    values = {"path": str(store), "core": description, "value_bytes": value_size, **found}
    if json:
        print_json(values)
        return
    print_lines([f"{store}, values of {counted(value_size, 'byte')}, core: {description}", *_lines(found)])


@contextmanager
def _store_beside(path: Path) -> Iterator[Store]:
    """A temporary store in the directory of `path`, so on the same disk, with its configuration."""
    from commitlog.config import Config
    from commitlog.disk.store_directory import StoreDirectory
    from commitlog.errors import StoreNotFound
    from commitlog.store import Store

    directory = StoreDirectory(path)
    try:
        config = Config.from_json(directory.load().config).to_json()
    except StoreNotFound:
        config = Config().to_json()
    config["store"]["segment_bytes"] = 0  # what fits into the memory that is free beside the store's own
    parent = next(place for place in directory.path.parents if place.is_dir())
    made = parent / f".{directory.path.name}.bench-{os.getpid()}"
    try:
        with Store.open(made, config) as store:
            yield store
    finally:
        if made.exists():
            shutil.rmtree(made)


def _measure(store: Store, seconds: float, value_bytes: int) -> dict[str, Any]:
    """Each of the four runs takes about `seconds`."""
    from commitlog.reader import Reader

    value = b"x" * value_bytes
    with store.producer() as producer:
        one = _rate(value_bytes, seconds, lambda: producer.send(_TOPIC, value) and 1)
        batch = [value] * _BATCH
        many = _rate(value_bytes, seconds, lambda: producer.send_batch(_TOPIC, batch) and _BATCH)
        producer.flush()
        latencies = []
        until = SYSTEM_CLOCK.monotonic_ns() + int(seconds * 1e9)
        while (begin := SYSTEM_CLOCK.monotonic_ns()) < until:
            producer.send(_TOPIC, value).wait("flushed")
            latencies.append((SYSTEM_CLOCK.monotonic_ns() - begin) / 1e6)
    _await_index(store)
    with Reader(store.path, _TOPIC) as reader:
        read = _rate(value_bytes, seconds, lambda: 1 if next(reader, None) else 0)
    latencies.sort()
    return {
        "append_messages_per_second": one,
        "append_bytes_per_second": one * value_bytes,
        "batch_append_messages_per_second": many,
        "batch_append_bytes_per_second": many * value_bytes,
        "flushes": len(latencies),
        "flush_p50_ms": latencies[len(latencies) // 2],
        "flush_p99_ms": latencies[len(latencies) * 99 // 100],
        "read_messages_per_second": read,
        "read_bytes_per_second": read * value_bytes,
    }


def _await_index(store: Store) -> None:
    """Waits for the dispatcher: a reader would come to the end of the consume queues at once."""
    while store.running and any(lane.dispatched < lane.flushed for lane in store.statistics().lanes):
        SYSTEM_CLOCK.sleep(_POLL_SECONDS)


def _rate(value_bytes: int, seconds: float, step: Any) -> float:
    """Messages a second of a step that returns how many it did. It ends where that is none."""
    begin = now = SYSTEM_CLOCK.monotonic_ns()
    until, done, most = begin + int(seconds * 1e9), 0, _APPEND_BYTES_MAX // (value_bytes + 128)
    while now < until and done < most:
        count = step()
        if not count:
            break
        done += count
        now = SYSTEM_CLOCK.monotonic_ns()
    return done / max((SYSTEM_CLOCK.monotonic_ns() - begin) / 1e9, 1e-9)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for name in ("append", "batch_append", "read"):
        rate, volume = found[f"{name}_messages_per_second"], found[f"{name}_bytes_per_second"] / 1e6
        yield f"  {_LABELS[name]:<22}{rate:>12,.0f} messages/s {volume:>10,.1f} MB/s"
    p50, p99, count = found["flush_p50_ms"], found["flush_p99_ms"], found["flushes"]
    yield f"  {_LABELS['flush']:<22}{p50:>12,.2f} ms p50 {p99:>16,.2f} ms p99, of {count:,}"
