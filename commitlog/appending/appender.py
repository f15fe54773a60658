"""The state of `Producer.send`, in Python or, if it is in use, in the native core.

`Appender` is the base of `Producer`, and a `Topic` has the state of one topic. The native classes
are in commitlog/native/src/appender.rs. They hold the same values under the same names, so that
both cores' calls can take turns on one producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog.native import core
from commitlog.receipt import Receipt
from commitlog.record.record_layout import Buffer

if TYPE_CHECKING or core is None:

    class Topic:
        """The next offset of a topic. The other arguments are for the native core's encoder."""

        __slots__ = ("next_offset",)

        def __init__(self, head: bytes, topic_part: bytes, has_crc: bool, next_offset: int) -> None:
            self.next_offset = next_offset

    class Appender:
        """The values that every `send` reads and changes. `Producer` sets them."""

        __slots__ = (
            "_is_ahead", "_messages", "_next_tick", "_seen", "_sync", "_timestamp", "_token", "_topics", "_wrote",
            "message_bytes_max",
        )  # fmt: skip

        def _take_lane(
            self,
            words: memoryview,
            wrote: int,
            messages: int,
            sleep: int,
            progress: object,
            receipt: type[Receipt],
            reserved: frozenset[str],
        ) -> None:
            """For the native core: where the lane's words are, and of what type receipts are."""

        def _write_to(self, buffer: Buffer | None, start: int, limit: int) -> None:
            """For the native core: the memory that records go to from now on, or None."""

else:
    Appender, Topic = core.Appender, core.Topic
