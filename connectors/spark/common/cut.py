"""Takes the consistent cut by which a job judges: cursors of all shards, and the end of every log.

The order of the requests makes it consistent:

1. the *earlier* checkpoints, then 2. the ends of all topics that are read, then 3. the *later*
checkpoints.

An output is committed together with what it settles. So a record that the earlier checkpoint counts
as settled has its output below those ends, or it is lost; and a record with an output below those
ends is settled by the later checkpoint, or it is not checkpointed. Between the two, both are
possible.

Ends are high watermarks, taken once no transaction below them is open: another producer's open
transaction would hide committed records. If one stays open, the log is read up to it; in the
checkpoint topic that is an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Final

from confluent_kafka import IsolationLevel

from connectors.kafka.clients import KafkaAdmin, admin_client
from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.log_ends import EARLIEST, LATEST, offsets_of
from connectors.kafka.scan import consumer_config, topic_ids
from connectors.spark.common.newest import CheckpointLog, newest_checkpoints
from connectors.spark.common.topics import Place, Span, native_options
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint
from delayservice.engine.cursor import Cursor

SETTLE_TIMEOUT_S: Final = 150.0
"""Longest wait for transactions in the checkpoint topic, in s: longer than a broker leaves the
transaction of a dead producer open."""
OPEN_WAIT_S: Final = 15.0
"""Longest wait for a transaction in another topic, in s: longer than the service's own take."""
TICK_S: Final = 0.1
"""Pause before the cluster is asked again, in s."""
headers_of: Final = methodcaller("headers")
"""Call of ``message.headers()`` from C, for the reason given in ``connectors.kafka.scan``."""


@dataclass(frozen=True, slots=True)
class ShardCut:
    """One shard (partition of a delay topic) at the cut.

    Attributes:
        topic_id: Kafka's id of the topic, by which a topic made anew is told from the old one.
        earlier, later: its cursors (which records are settled) before and after the ends of the
            logs were read.
        contracts: settings by which its records are read, by offset.
        span: offsets of its log.
    """

    topic: str
    partition: int
    topic_id: str
    earlier: Cursor
    later: Cursor
    contracts: Contracts
    span: Span

    @property
    def name(self) -> str:
        """The shard as ``topic:partition``, as in headers."""
        return f"{self.topic}:{self.partition}"

    @property
    def place(self) -> Place:
        """Topic and partition of the shard."""
        return self.topic, self.partition

    def to_json(self) -> dict[str, object]:
        """Return the fields for the summary of a job."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "topic_id": self.topic_id,
            "earlier": {"k": list(self.earlier.key), "h": self.earlier.offset},
            "later": {"k": list(self.later.key), "h": self.later.offset},
            "start": self.span.start,
            "end": self.span.end,
        }


@dataclass(frozen=True, slots=True)
class Cut:
    """A consistent cut of a cluster.

    Attributes:
        taken_ms: time at which its ends were read, epoch ms, by the clock of this machine.
        shards: all shards that are served, by topic and partition.
        others: logs of every other topic that is read.
        partitions: number of partitions of each topic of the cluster.
        served: every shard that a checkpoint names, as in headers.
        notes: one sentence for each thing that is not judged, with the reason.
        open_places: logs that are read up to a transaction that stays open.
        unserved: number of offsets in partitions of delay topics that no checkpoint names.
        topic_ids: ids of all topics that are read.
        dead_letter, outcomes: names of the service's dead-letter topic and outcome topic.
    """

    taken_ms: int
    shards: tuple[ShardCut, ...]
    others: Mapping[Place, Span]
    partitions: Mapping[str, int]
    served: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    open_places: frozenset[Place] = frozenset()
    unserved: Mapping[Place, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    dead_letter: str = "delay_dead_letter"
    outcomes: str = "delay_outcomes"

    @property
    def spans(self) -> dict[Place, Span]:
        """Spans of all logs that are read."""
        own = {shard.place: shard.span for shard in self.shards}
        return {**self.others, **own}

    @property
    def delay_topics(self) -> list[str]:
        """Topics of the shards, sorted."""
        return sorted({shard.topic for shard in self.shards})

    def to_json(self) -> dict[str, object]:
        """Return the fields for the summary of a job."""
        return {
            "taken_ms": self.taken_ms,
            "shards": [shard.to_json() for shard in self.shards],
            "others": [
                {"topic": topic, "partition": partition, "start": span.start, "end": span.end}
                for (topic, partition), span in sorted(self.others.items())
            ],
            "notes": list(self.notes),
        }


Choose = Callable[[Collection[Contracts], Collection[str]], Collection[str]]
"""Function from ``(contracts of all shards, all topics of the cluster)`` to the topics to read
besides the delay topics."""


def take_cut(
    client: Mapping[str, str],
    checkpoint: str,
    choose: Choose,
    *,
    expected: Collection[str] = (),
    open_wait_s: float = OPEN_WAIT_S,
) -> Cut:
    """Take a consistent cut now, and return it.

    Args:
        client: options of librdkafka.
        checkpoint: the checkpoint topic.
        choose: chooses the other topics to read.
        expected: delay topics that should be in the checkpoints, as far as they exist.
        open_wait_s: longest wait in s for transactions in other topics than the checkpoint topic
            to end; after that, those topics are read up to the transaction.

    Raises:
        KafkaEdgeError: the cluster does not answer, a checkpoint can't be read, or a transaction
            in the checkpoint topic stays open.
    """
    cluster = _CutClient(client)
    partitions = partition_counts(cluster.admin)
    if checkpoint not in partitions:
        raise KafkaEdgeError(
            f"there is no topic {checkpoint}: name the service's checkpoint topic, as its setting "
            "topics.checkpoint does"
        )
    earlier = cluster.checkpoints(checkpoint, partitions)
    served = _served(earlier)
    topics = {*(topic for topic, _ in served), *expected} & partitions.keys()
    contracts = [shard.contracts for shard in served.values()]
    chosen = set(choose(contracts, partitions.keys())) & partitions.keys()
    taken_ms = time.time_ns() // 1_000_000
    # The delay topics last: what an output names is in them by then.
    others, hidden = cluster.spans(_places(chosen - topics, partitions), open_wait_s)
    spans, also_hidden = cluster.spans(_places(topics, partitions), open_wait_s)
    later = _served(cluster.checkpoints(checkpoint, partitions))
    asked = sorted(topics | chosen)
    ids = topic_ids(cluster.admin, asked) if asked else {}
    open_places = frozenset(hidden | also_hidden)
    notes = tuple(
        f"{topic}:{number} is read up to offset {(others | spans)[topic, number].end}: a "
        "transaction there stays open (find its producer with kafka-transactions.sh find-hanging)"
        for topic, number in sorted(open_places)
    )
    cut = Cut(taken_ms, (), others, partitions, notes=notes, open_places=open_places, topic_ids=ids)
    return _with_shards(cut, served, later, spans, ids)


def _places(topics: Collection[str], partitions: Mapping[str, int]) -> list[Place]:
    return [(topic, number) for topic in topics for number in range(partitions[topic])]


def settled_spans(client: Mapping[str, str], topics: Collection[str]) -> dict[Place, Span]:
    """Return the current spans of whole topics, once no transaction below their ends is open.

    Raises:
        KafkaEdgeError: as ``take_cut``.
    """
    cluster = _CutClient(client)
    counts = partition_counts(cluster.admin)
    return cluster.settled_spans(_places([topic for topic in topics if topic in counts], counts))


def _with_shards(
    cut: Cut,
    earlier: Mapping[Place, ShardCheckpoint],
    later: Mapping[Place, ShardCheckpoint],
    spans: Mapping[Place, Span],
    ids: Mapping[str, str],
) -> Cut:
    """Return the cut with every shard that can be judged, and a note for every other one."""
    shards: list[ShardCut] = []
    notes = list(cut.notes)
    unserved: dict[Place, int] = {}
    for place in sorted(earlier.keys() | spans.keys()):
        topic, partition = place
        first, last = earlier.get(place), later.get(place)
        held = spans[place].end - spans[place].start if place in spans else 0
        is_anew = last is not None and ids.get(topic) not in (None, last.topic_id)
        if held and (first is None or last is None or is_anew):
            unserved[place] = held
        if first is None or last is None:
            notes.append(f"{topic}:{partition} is in no checkpoint: no node has served it yet")
        elif place not in spans:
            notes.append(f"{topic}:{partition} is in the checkpoint, and not in the cluster")
        elif is_anew:
            notes.append(f"{topic}:{partition} was made anew, and no node has served the new one")
        else:
            notes += [
                f"{topic}:{partition} lost the offsets {lost.first} to {lost.stop - 1}: retention "
                f"deleted them before they were settled; from {lost.unread} on they were not stored"
                for lost in last.lost
            ]
            began = first.cursor if first.topic_id == last.topic_id else Cursor()
            shards.append(
                ShardCut(*place, last.topic_id, began, last.cursor, last.contracts, spans[place])
            )
    served = frozenset(f"{topic}:{partition}" for topic, partition in earlier.keys() | later.keys())
    return replace(cut, shards=tuple(shards), served=served, notes=tuple(notes), unserved=unserved)


def _served(checkpoints: Mapping[int, Checkpoint]) -> dict[Place, ShardCheckpoint]:
    return {
        (topic, slice_no): shard
        for slice_no, checkpoint in checkpoints.items()
        for topic, shard in checkpoint.shards.items()
    }


class _CutClient:
    """Client that asks the cluster for checkpoints and the ends of logs."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = native_options(client)
        self.admin: KafkaAdmin = admin_client(self._client)

    def checkpoints(self, topic: str, partitions: Mapping[str, int]) -> dict[int, Checkpoint]:
        """Return the newest committed checkpoint of every slice that has one."""
        config = consumer_config(self._client, "spark-cut")
        count = partitions[topic]
        spans = self.settled_spans([(topic, number) for number in range(count)])
        logs = [
            CheckpointLog(config, *place, count, span.start, span.end)
            for place, span in spans.items()
        ]
        return newest_checkpoints(logs, partitions)

    def settled_spans(self, places: Collection[Place]) -> dict[Place, Span]:
        """Return logs up to their high watermarks, once no transaction below those is open."""
        spans, hidden = self.spans(places, SETTLE_TIMEOUT_S)
        if hidden:
            topic, partition = min(hidden)
            raise KafkaEdgeError(
                f"a transaction in {topic}:{partition} has been open for "
                f"{SETTLE_TIMEOUT_S:.0f} s, and hides what comes after it: find its producer "
                "(kafka-transactions.sh find-hanging), or try again later"
            )
        return spans

    def spans(
        self, places: Collection[Place], wait_s: float
    ) -> tuple[dict[Place, Span], set[Place]]:
        """Return logs up to their high watermarks, once no transaction below those is open, and the
        places where one stays open, whose logs end at it.
        """
        ends = offsets_of(self.admin, places, LATEST)
        waiting = set(ends)
        stable: dict[Place, int] = {}
        deadline_s = time.monotonic() + wait_s
        tick = threading.Event()
        while waiting:
            stable = offsets_of(self.admin, waiting, LATEST, IsolationLevel.READ_COMMITTED)
            waiting = {place for place in waiting if stable[place] < ends[place]}
            if waiting and time.monotonic() > deadline_s:
                break
            if waiting:
                tick.wait(TICK_S)
        ends |= {place: stable[place] for place in waiting}
        # After the ends: retention may pass an end that was asked for before.
        starts = offsets_of(self.admin, places, EARLIEST)
        spans = {place: Span(starts[place], max(ends[place], starts[place])) for place in ends}
        return spans, waiting
