"""Consumer that ships orders; failed ones are retried later, and at last the service dead-letters
them.

An order's value is the name of an article; the articles in stock are in a file.
"""

import signal
import threading
from pathlib import Path

import typer
from confluent_kafka import Consumer, Message

from connectors.kafka.client import (
    RETRY_DELAYS_MS,
    Deduplicator,
    DelayProducer,
    RetryLadder,
    source_of,
)


class OutOfStockError(Exception):
    """An ordered article that is not in stock."""


def ship(order: Message, stock: Path) -> None:
    """Ship an order, by printing it. Any exception makes the consumer retry the order later.

    Args:
        order: record whose value is the name of an article.
        stock: file with the names of the articles in stock, separated by white space.

    Raises:
        OutOfStockError: the article is not in the file.
    """
    article = (order.value() or b"").decode()
    if article not in stock.read_text("utf-8").split():
        raise OutOfStockError(article)
    print(f"shipped {article}, order {source_of(order)}", flush=True)


def main(
    bootstrap: str,
    stock: Path,
    topic: str = "orders",
    group: str = "shipping",
    delay_topic: str = "delay_topic_any",
    delay_ms: list[int] | None = None,
) -> None:
    """Consume until Ctrl-C or SIGTERM; the current record is finished first."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # an offset is committed when its record is dealt with
            "isolation.level": "read_committed",
        }
    )
    producer = DelayProducer({"bootstrap.servers": bootstrap}, delay_topic)
    ladder = RetryLadder(group, producer, delays=delay_ms or RETRY_DELAYS_MS)
    shipped = Deduplicator()
    consumer.subscribe([topic, ladder.retry_topic])
    try:
        while not stopping.is_set():
            order = consumer.poll(1.0)
            if order is None:
                continue
            if order.error():
                print(order.error(), flush=True)
                continue
            try:
                if not shipped.is_done(order):
                    ship(order, stock)
                    shipped.done(order)
            except Exception as error:
                failures = ladder.failed(order, error)
                ladder.confirm()  # it is at the broker, so nothing is lost by the commit below
                print(f"{error!r}: failure {failures}, sent back", flush=True)
            consumer.commit(message=order, asynchronous=False)
        print("stopped", flush=True)
    finally:
        consumer.close()


if __name__ == "__main__":
    typer.run(main)
