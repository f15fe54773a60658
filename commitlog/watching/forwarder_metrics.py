"""The metrics of forwarders, which feed Kafka clusters from the store."""

from __future__ import annotations

from collections.abc import Callable

from commitlog.disk.forwarder_files import STATES, ForwarderStatistics
from commitlog.watching.metric import Kind, Metric


def _of_forwarders(name: str, kind: Kind, meaning: str, value: Callable[[ForwarderStatistics], float]) -> Metric:
    """A metric of each forwarder, by its name and its cluster."""
    return Metric(
        name,
        kind,
        ("forwarder", "target"),
        meaning,
        lambda snapshot: (((one.name, one.target), value(one)) for one in snapshot.forwarders),
    )


FORWARDER_METRICS = (
    Metric(
        "commitlog_forwarder_state",
        "gauge",
        ("forwarder", "target", "state"),
        "1 for its state: starting, forwarding, waiting (the cluster does not answer) or stopped",
        lambda snapshot: (
            ((one.name, one.target, state), state == one.state) for one in snapshot.forwarders for state in STATES
        ),
    ),
    _of_forwarders(
        "commitlog_forwarder_messages_total", "counter", "Messages forwarded since its start", lambda one: one.messages
    ),
    _of_forwarders("commitlog_forwarder_bytes_total", "counter", "Bytes of their values", lambda one: one.bytes),
    _of_forwarders(
        "commitlog_forwarder_transactions_total", "counter", "Transactions committed", lambda one: one.transactions
    ),
    _of_forwarders(
        "commitlog_forwarder_errors_total", "counter", "Sessions that ended in an error", lambda one: one.errors
    ),
    _of_forwarders(
        "commitlog_forwarder_behind_messages", "gauge", "Messages not forwarded yet", lambda one: one.behind_messages
    ),
    _of_forwarders("commitlog_forwarder_behind_bytes", "gauge", "Their bytes, estimated", lambda one: one.behind_bytes),
    _of_forwarders(
        "commitlog_forwarder_behind_seconds",
        "gauge",
        "Age of the oldest message that is not forwarded; 0: there is none",
        lambda one: one.behind_ms / 1000,
    ),
)
