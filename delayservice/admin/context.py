"""Data and Kafka clients of the node that the routes of the API use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.controls import ControlClient
from connectors.kafka.dead_letters import (
    READ_COMMITTED,
    DeadLetterTopic,
    Survey,
    partition_counts,
)
from connectors.kafka.fate import FateFinder
from connectors.kafka.log_ends import log_bounds
from connectors.kafka.node_topics import PauseWatcher
from connectors.kafka.scan import consumer_config, scan_partition
from connectors.kafka.topic_configs import is_delay_topic
from delayservice.admin.inquiry import Kept, Workers
from delayservice.admin.problems import Refusal
from delayservice.config.settings import Settings
from delayservice.contract.entry import PolledRecord
from delayservice.contract.replays import DeadLetter
from delayservice.metrics.hub import MetricsHub

_TOPICS_FRESH_S: Final = 5.0
# Approximate limit of the bytes that one request reads from the dead-letter topic.
SURVEY_BYTES_MAX: Final = 32 << 20
# Largest number of offsets that are read to know whether a dead letter was replayed.
REPLAY_OFFSETS_MAX: Final = 200_000
_GOOD_STATES: Final = frozenset({"owner", "replica"})
_TURN_WAIT_S: Final = 5.0


class OneAtATime:
    """Lock for requests that read much. ``Refusal`` is raised after 5 s of waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_TURN_WAIT_S):
            why = "the topics are being read for another request; try again"
            raise Refusal(503, why, retry_after_s=1)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ApiContext:
    """Data and Kafka clients of the node for the routes of the API and the page."""

    def __init__(
        self,
        settings: Settings,
        *,
        hub: MetricsHub,
        inquiry: Workers,
        admin: KafkaAdmin,
        desk: ControlClient,
        pauses: PauseWatcher,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.settings = settings
        self.hub = hub
        self.inquiry = inquiry
        self.desk = desk
        self.pauses = pauses
        self.wall_ms = wall_ms
        self._admin = admin
        # While Kafka does not answer, one request waits for it, and the others get the last answer.
        self._topics = Kept(self._find_topics, _TOPICS_FRESH_S, takes_old=True)
        # Each of these reads megabytes.
        self._survey_turn = OneAtATime()
        self.fates = FateFinder(settings, admin, wall_ms, OneAtATime())

    @property
    def delay_topics(self) -> dict[str, int]:
        """Partition count of each existing delay topic by name: configured ones, discovered ones,
        and level topics last. The counts are about 5 s old.
        """
        return self._topics.get()

    def _find_topics(self) -> dict[str, int]:
        named, levels = self.settings.topics.delay, self.settings.levels.by_topic
        counts = partition_counts(self._admin)
        found = [name for name in counts if is_delay_topic(name, self.settings)]
        found.sort(key=lambda name: (name in levels, name not in named, name))
        return {name: counts[name] for name in found}

    def slices_elsewhere(self) -> list[int]:
        """Return the numbers of the slices of which this node keeps no whole copy."""
        here = {one.slice for one in self.hub.slices() if one.state in _GOOD_STATES}
        return [held.slice for held in self.inquiry.members().slices if held.slice not in here]

    def is_catching_up(self, slice_no: int) -> bool:
        """Return whether this node's copy of a slice lags, so that it may contain settled records;
        False if the node keeps no copy.
        """
        return any(
            one.slice == slice_no and one.state not in _GOOD_STATES for one in self.hub.slices()
        )

    def read(self, topic: str, partition: int, offset: int) -> PolledRecord:
        """Return a record of a delay topic, as written; raises ``Refusal`` if there is none."""
        if not self.is_delay(topic, partition):
            raise Refusal(404, f"{topic}:{partition} is no partition of a delay topic")
        start, end, _ = log_bounds(self._admin, topic, partition, READ_COMMITTED)
        if not start <= offset < end:
            raise Refusal(
                404, f"{topic}:{partition} holds offsets from {start} to {end - 1}, not {offset}"
            )
        config = consumer_config(self.settings.kafka.client_config("consumer"), "look")
        for run in scan_partition(config, topic, partition, offset, offset + 1):
            for row in run.rows:
                return row
        raise Refusal(
            404,
            f"{topic}:{partition}:{offset} is no record: a transaction's marker, or one of an "
            "aborted transaction",
        )

    def is_delay(self, topic: str, partition: int) -> bool:
        return partition < self.delay_topics.get(topic, 0)

    def dead_letters(self, last: int, code: str | None = None) -> Survey:
        """Return the newest dead letters, and which of them were replayed.

        ``last``: largest number of offsets to read from the end of each partition.
        """
        with self._survey_turn:
            return self._letters(last=last).survey(code, SURVEY_BYTES_MAX)

    def letter(self, partition: int, offset: int) -> tuple[DeadLetter, bool]:
        """Return a dead letter, and whether it was replayed."""
        with self._survey_turn:
            topic = self._letters(since=(partition, offset))
            if topic.length > REPLAY_OFFSETS_MAX:
                raise Refusal(
                    409,
                    f"{topic.length:,} offsets follow this dead letter, too many to read for its "
                    "replay; use delayservice dlq replay",
                )
            letter, is_replayed = topic.first()
        if letter is None:
            name = self.settings.topics.dead_letter
            raise Refusal(404, f"{name}:{partition}:{offset} is no dead letter")
        return letter, is_replayed

    def _letters(
        self, last: int | None = None, since: tuple[int, int] | None = None
    ) -> DeadLetterTopic:
        name, consumer = self.settings.topics.dead_letter, self.settings.kafka
        config = consumer.client_config("consumer")
        partitions = self.desk.partitions(name)
        return DeadLetterTopic(name, partitions, config, self._admin, last=last, since=since)
