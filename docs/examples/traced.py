"""Example of tracing (OpenTelemetry) over a delay: a record is scheduled within one trace; its
delivered record is handled in another one, which links to the first.

The service delivers the headers ``traceparent``, ``tracestate`` and ``baggage``, as it does all
headers of a producer.
"""

import sys

from confluent_kafka import Message
from opentelemetry import propagate, trace

from connectors.kafka.client import DelayProducer, own_headers

tracer = trace.get_tracer("orders")


def schedule(producer: DelayProducer) -> None:
    """Start a trace, and send a delayed record with the headers of that trace."""
    with tracer.start_as_current_span("schedule", kind=trace.SpanKind.PRODUCER):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        producer.send("orders", b"pay now", key="order-17", delay="PT3S", headers=headers)


def handle(message: Message) -> None:
    """Handle a delivered record in a new trace, which links to the span of ``schedule``.

    That span can't be the parent, because it ended before the delay began.
    """
    carrier = {name: (value or b"").decode() for name, value in own_headers(message)}
    origin = trace.get_current_span(propagate.extract(carrier)).get_span_context()
    kind = trace.SpanKind.CONSUMER
    with tracer.start_as_current_span("handle", kind=kind, links=[trace.Link(origin)]):
        print(f"handled, trace {origin.trace_id:032x}")


if __name__ == "__main__":
    with DelayProducer({"bootstrap.servers": sys.argv[1]}) as delayed:
        schedule(delayed)
