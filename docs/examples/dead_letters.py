"""Consumer that prints the dead letters of one target."""

from confluent_kafka import Consumer

consumer = Consumer(
    {
        "bootstrap.servers": "localhost:9092",
        "group.id": "orders-dead-letters",
        "auto.offset.reset": "earliest",
    }
)
consumer.subscribe(["delay_dead_letter"])
while True:
    letter = consumer.poll(1.0)
    if letter is None or letter.error():
        continue
    last = dict(letter.headers() or [])  # the last header of a name counts
    headers = {name: value for name, value in last.items() if isinstance(value, bytes)}
    if "delay-error" in headers and headers.get("delay-target-topic") == b"orders":
        why = headers["delay-error-detail"].decode()
        print(headers["delay-error"].decode(), headers["delay-source"].decode(), why)
