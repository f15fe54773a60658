"""The forwarders of a store, as `stat` and `top` show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from commitlog.disk.forwarder_files import ForwarderStatistics
from commitlog.text.quantities import counted

HEADS = ("forwarder", "state", "behind", "MB behind", "s behind", "msg/s", "errors")


def lines(forwarders: Iterable[ForwarderStatistics]) -> Iterator[str]:
    """A line for each forwarder, and one for its last error."""
    for one in forwarders:
        yield (
            f"forwarder {one.name} to {one.target}: {one.state}, {counted(one.behind_messages, 'message')} "
            f"({one.behind_bytes:,} bytes, {one.behind_ms:,} ms) behind, {one.messages_per_second:,.0f} messages/s, "
            f"{counted(one.messages, 'message')} in {counted(one.transactions, 'transaction')}, "
            f"{counted(one.errors, 'error')}"
        )
        if one.last_error:
            yield f"    last error: {one.last_error}"


def rows(forwarders: Iterable[ForwarderStatistics]) -> Iterator[tuple[str, ...]]:
    """Cells for HEADS."""
    for one in forwarders:
        yield (
            one.name,
            one.state,
            f"{one.behind_messages:,}",
            f"{one.behind_bytes / 1e6:,.3f}",
            f"{one.behind_ms / 1000:,.1f}",
            f"{one.messages_per_second:,.0f}",
            f"{one.errors:,}",
        )
