"""Workers that claim slices on a real Kafka: what each of them has of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import admin_client
from connectors.kafka.sink import KafkaSink, WriterOptions
from connectors.kafka.take_over_client import KafkaTakeOverClient
from connectors.kafka.targets import TargetTopics
from delayservice.base.clock import SystemClock
from delayservice.engine.checkpoint import Checkpoint, encode_checkpoint, fingerprint
from delayservice.engine.claims import CLAIM, Tenure, encode_word
from delayservice.engine.outcome import DELIVERED, Output
from delayservice.engine.ports import Control
from delayservice.slices.slice import Taken
from delayservice.slices.take_over import take_over
from tests.integration.bench import Reader

SECRET = fingerprint(b"secret")
SLICE = 5
PLACE = ("delay_topic_any", SLICE)


@dataclass
class Topics:
    """The service's own topics and a target, made for one test."""

    bootstrap: str
    checkpoint: str
    claims: str
    target: str

    @property
    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap}

    def options(self, name: str) -> WriterOptions:
        return WriterOptions(
            name_prefix=f"test-{name}",
            checkpoint_topic=self.checkpoint,
            checkpoint_partitions=1,
            claims_topic=self.claims,
            producer=self.client,
            consumer=self.client,
        )

    def delivered(self) -> list[bytes]:
        """Return what a read_committed consumer of the target sees, to the end of the log."""
        with Reader(self.bootstrap, [self.target]) as reader:
            return [one.value or b"" for one in reader.to_end()]


@dataclass
class Worker:
    """What one worker has of Kafka: a sink, the tail and the take-over client."""

    topics: Topics
    name: str
    sink: KafkaSink = field(init=False)
    tail: KafkaCheckpoints = field(init=False)
    take_over_client: KafkaTakeOverClient = field(init=False)
    writer: str = ""

    def __post_init__(self) -> None:
        """Its clients, as a worker has them."""
        topics, admin = self.topics, admin_client(self.topics.client)
        options = topics.options(self.name)
        self.sink = KafkaSink(options, TargetTopics(admin))
        self.tail = KafkaCheckpoints(options, SystemClock(), self.name)
        self.tail.start()
        self.take_over_client = KafkaTakeOverClient(options, self.tail, admin, frozenset)

    def open(self) -> None:
        self.writer = self.sink.open()
        self.take_over_client.enter(self.writer)
        self.turn = -1

    def close(self) -> None:
        self.sink.discard()
        self.tail.close()

    def say(self, word: str) -> Control:
        self.turn += 1
        return Control(
            SLICE, encode_word(SLICE, self.writer, self.name, word, self.turn), self.writer
        )

    def checkpoint(self, claim: int, commit: int) -> Control:
        written = Checkpoint(SLICE, self.name, 1, SECRET, {}, commit, Tenure(self.writer, claim))
        return Control(SLICE, encode_checkpoint(written))

    def take_over(self) -> Taken:
        """Claim the slice and do all that precedes the first checkpoint."""
        self.sink.commit([self.say(CLAIM)])
        return take_over(self.take_over_client, self.writer, {SLICE: self.turn - 1}, {}, SECRET)[
            SLICE
        ]

    def serve(self, value: bytes, claim: int, commit: int = 1) -> None:
        """Deliver one record, with the checkpoint that settles it."""
        output: Output = (DELIVERED, self.topics.target, 0, None, value, [], 1, 0)
        self.sink.send(PLACE, [output])
        self.sink.commit([self.checkpoint(claim, commit)])
