"""Traces of OpenTelemetry that go on from a producer to the readers of its messages.

    producer.send("orders", value, headers=commitlog.tracing.headers())      # inside a span

    with tracer.start_as_current_span("bill", context=commitlog.tracing.context(message)):
        ...                                                                  # a child of that span

The context of a span travels as headers of the message, by default `traceparent` and `tracestate`
of the W3C. Baggage travels as `baggage`, also without a span. `send` itself knows nothing of them,
so whoever does not trace pays nothing. Which headers there are is what OpenTelemetry's global
propagator says (OTEL_PROPAGATORS).

It needs opentelemetry-api, of the extra `tracing`: the import raises MissingPackage without it.
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
    """The current span and baggage as headers for `send`; empty where there is neither."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def context(message: Message) -> Context:
    """The context that a message's headers carry, to start a span in or to link one to.

    Without such headers it is the current context.
    """
    return propagate.extract(message.headers)
