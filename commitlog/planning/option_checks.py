"""Checks which options go together, in any read, a batch, a stream, or with a RocketMQ root."""

from __future__ import annotations

from commitlog.errors import OptionError
from commitlog.planning.option_values import bad
from commitlog.planning.options import SourceOptions, Subscription
from commitlog.reading.starting_point import EARLIEST_OFFSET, LATEST, LATEST_OFFSET, Offsets


def check_read(options: SourceOptions) -> None:
    """Checks what every read needs. Raises OptionError."""
    chosen = options.subscription
    if not chosen.topics and chosen.pattern is None and chosen.assigned is None:
        raise OptionError(
            "option subscribe is missing; give topics, or subscribePattern, or assign: .option('subscribe', 'orders')"
        )
    for bound in (options.starting, options.ending):
        named = (bound.offsets or bound.times) if bound else None
        strange = {topic for topic in named or () if not _subscribed(chosen, topic)}
        if bound and strange:
            raise bad(bound.option, ", ".join(sorted(strange)), "name only topics that are subscribed to")


def _subscribed(chosen: Subscription, topic: str) -> bool:
    return topic in chosen.chosen([topic])


def check_batch(options: SourceOptions) -> None:
    """Raises OptionError for what a batch can't have, and a stream can."""
    if options.follows == "accepted":
        raise bad("isolation", "accepted", "a batch has what is flushed, or committed")
    if "hurry" in options.given:
        raise OptionError(f"option hurry: {ONLY_IN_REAL_TIME}")
    if options.reader_name is not None:
        raise OptionError("option readerName: a batch has no position to keep; use it with spark.readStream")
    starting, ending = options.starting, options.ending
    if starting and starting.start == LATEST:
        raise bad(starting.option, "latest", "a batch begins at earliest, at offsets, a time or 'last 100'")
    if ending and ending.start.kind in ("earliest", "last"):
        raise bad(ending.option, ending.start.kind, "a batch ends at latest, at offsets or a time")
    if starting and LATEST_OFFSET in _numbers(starting.offsets):
        raise bad(starting.option, LATEST_OFFSET, "a batch can't begin at latest (−1)")
    if ending and EARLIEST_OFFSET in _numbers(ending.offsets):
        raise bad(ending.option, EARLIEST_OFFSET, "a batch can't end at earliest (−2)")


def _numbers(offsets: Offsets | None) -> set[int]:
    return {number for lanes in (offsets or {}).values() for number in lanes.values()}


ONLY_IN_REAL_TIME = "it is for a stream in Real-Time Mode (.trigger(realTime=…)) only; leave it out"
_LIMITS_OF_BATCHES = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxRowsPerTrigger")


def check_stream(options: SourceOptions, *, is_real_time: bool = False) -> None:
    """Raises OptionError for what a stream can't have, and a batch can.

    In Real-Time Mode it also raises it for limits of micro-batches.
    """
    if options.ending:
        raise OptionError(f"option {options.ending.option}: a stream has no end; use it with spark.read")
    if is_real_time:
        for limit in _LIMITS_OF_BATCHES:
            if limit in options.given:
                raise OptionError(f"option {limit}: in Real-Time Mode each message comes at once; leave it out")
    elif "hurry" in options.given:
        raise OptionError(f"option hurry: {ONLY_IN_REAL_TIME}")
    elif options.read.isolation != "flushed":
        allowed = "micro-batches have what is flushed; committed and accepted are for .trigger(realTime=…)"
        raise bad("isolation", options.follows, allowed)


def check_rocketmq(options: SourceOptions) -> None:
    """Raises OptionError for what can't be used with a RocketMQ store root."""
    if "isolation" in options.given:
        raise OptionError(
            "option isolation: a RocketMQ store root is read up to the ends of its consume queues; leave it out"
        )
