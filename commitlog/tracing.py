"""Traces of OpenTelemetry that go on from a producer to the readers of its messages.

    producer.send("orders", value, headers=commitlog.tracing.headers())      # inside a span

    with tracer.start_as_current_span("bill", context=commitlog.tracing.context(message)):
        ...                                                                  # a child of that span

The context of a span travels as headers of the message, by default `traceparent` and `tracestate`
of the W3C. Baggage travels as the header `baggage`, even without a span. `send` itself knows
nothing of these headers, so a program without traces pays nothing. OpenTelemetry's global
propagator (OTEL_PROPAGATORS) decides which headers there are.

The module needs opentelemetry-api, of the extra `tracing`. Without that package the import raises
MissingPackage.
"""

from __future__ import annotations

from commitlog.errors import MissingPackage, how_to_install
from commitlog.message import Message

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context
except ImportError:
    raise MissingPackage(
        f"trace contexts need opentelemetry-api: {how_to_install('tracing', 'opentelemetry-api')}"
    ) from None


def headers() -> dict[str, str]:
    """Returns the current span and baggage as headers for `send`; empty if there is neither."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def context(message: Message) -> Context:
    """Returns the context of a message's headers: start a span in it, or link a span to it.

    If the message has no such headers, it is the current context.
    """
    return propagate.extract(message.headers)
