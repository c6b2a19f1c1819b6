"""Takes the consistent cut at which a job judges: cursors of all shards, and the end of every log.

The order of the requests makes it consistent:

1. the *earlier* checkpoints, then 2. the ends of all topics that are read, then 3. the *later*
checkpoints.

An output is committed together with the cursor that counts its record as settled. So a record that
the earlier checkpoint counts as settled has its output below the ends, or it is lost; and a record
with an output below the ends is settled by the later checkpoint, or there is an error. A record
settled only by the later checkpoint may have its output below the ends or not.

Ends are high watermarks, taken once no transaction below them is open: the open transaction of
another producer would hide committed records. If one stays open, the log is read up to it; in the
checkpoint topic that is an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import IsolationLevel

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.log_ends import EARLIEST, LATEST, offsets_of
from connectors.kafka.topic_facts import topic_ids
from connectors.spark.common.clients import admin_of, read_logs
from connectors.spark.common.topics import Place, Span
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contracts
from delayservice.engine.checkpoint import Checkpoint, Lost, ShardCheckpoint, decode_checkpoint_of
from delayservice.engine.claims import slice_no_of
from delayservice.engine.cursor import Cursor

# Longest wait for open transactions in the checkpoint topic, in s: longer than a broker leaves the
# transaction of a dead producer open.
SETTLE_TIMEOUT_S: Final = 150.0
# Longest wait for open transactions in other topics than the checkpoint topic, in s: longer than
# the service's own transactions take.
OPEN_WAIT_S: Final = 15.0
_TICK_S: Final = 0.1
# Number of offsets that are read first at the end of a partition of the checkpoint topic, and the
# factor by which each further range is longer. It limits the number of reads; in a compacted log
# most offsets hold no record.
_FIRST_LOOK: Final = 512
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class ShardCut:
    """One shard at a cut.

    Attributes:
        topic_id: Kafka's id of the topic, which differs after the topic is created again.
        earlier, later: cursor of the shard, read before and after the ends of the logs.
        contracts: contracts by which its records are read, by the source offset from which they
            hold.
        span: first offset and exclusive end of its log.
        lost: offsets that retention deleted before they were settled.
    """

    topic: str
    partition: int
    topic_id: str
    earlier: Cursor
    later: Cursor
    contracts: Contracts
    span: Span
    lost: tuple[Lost, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic}:{self.partition}"

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def to_json(self) -> dict[str, object]:
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
    """Consistent cut of a cluster: offsets and cursors up to which a job judges.

    Attributes:
        taken_ms: time at which the ends were read, epoch ms, by the clock of this machine.
        shards: all shards that can be judged, sorted by topic and partition.
        others: first offset and end of every other log that is read.
        partitions: number of partitions of each topic of the cluster.
        served: every shard that a checkpoint names, as ``topic:partition``.
        notes: one sentence for each log that is not judged, or only in part, with the reason.
        open_places: logs that are read only up to a transaction that stays open.
        unserved: number of offsets in each partition of a delay topic that no checkpoint covers.
        topic_ids: Kafka's id of each topic that is read.
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
        own = {shard.place: shard.span for shard in self.shards}
        return {**self.others, **own}

    @property
    def delay_topics(self) -> list[str]:
        return sorted({shard.topic for shard in self.shards})

    def to_json(self) -> dict[str, object]:
        return {
            "taken_ms": self.taken_ms,
            "shards": [shard.to_json() for shard in self.shards],
            "others": [
                {"topic": topic, "partition": partition, "start": span.start, "end": span.end}
                for (topic, partition), span in sorted(self.others.items())
            ],
            "notes": list(self.notes),
        }


Choose = Callable[[Collection[str]], Collection[str]]
"""Function from the names of all topics of the cluster to the topics to read besides the delay
topics."""


def take_cut(
    client: Mapping[str, str],
    checkpoint: str,
    choose: Choose,
    *,
    expected: Collection[str] = (),
    open_wait_s: float = OPEN_WAIT_S,
) -> Cut:
    """Take a consistent cut of the cluster now.

    Args:
        client: options of librdkafka.
        checkpoint: name of the checkpoint topic.
        choose: function that chooses the topics to read besides the delay topics.
        expected: delay topics that should be in the checkpoints: if no checkpoint names one that
            exists, the cut reports this in ``notes`` and ``unserved``.
        open_wait_s: longest wait, in s, for open transactions in other topics than the checkpoint
            topic; after that, their logs are read up to the transaction.

    Raises:
        KafkaEdgeError: the cluster does not answer, the checkpoint topic does not exist, a
            checkpoint can't be read, or a transaction in the checkpoint topic stays open.
    """
    admin = admin_of(client)
    partitions = partition_counts(admin)
    if checkpoint not in partitions:
        raise KafkaEdgeError(
            f"there is no topic {checkpoint}: name the service's checkpoint topic, as its setting "
            "topics.checkpoint does"
        )
    reader = _CheckpointReader(client, checkpoint, partitions)
    earlier = reader.newest()
    topics = {*(topic for topic, _ in earlier), *expected} & partitions.keys()
    chosen = set(choose(partitions.keys())) & partitions.keys()
    taken_ms = time.time_ns() // 1_000_000
    # The delay topics last: they then hold every record that an output names.
    others, hidden = _spans(admin, _places(chosen - topics, partitions), open_wait_s)
    spans, also_hidden = _spans(admin, _places(topics, partitions), open_wait_s)
    later = reader.newest()
    ids = topic_ids(admin, sorted(topics | chosen))
    hidden |= also_hidden
    open_notes = [
        f"{topic}:{number} is read up to offset {(others | spans)[topic, number].end}: a "
        "transaction there stays open (find its producer with kafka-transactions.sh find-hanging)"
        for topic, number in sorted(hidden)
    ]
    shards, notes, unserved = _shards(earlier, later, spans, ids)
    return Cut(
        taken_ms,
        tuple(shards),
        others,
        partitions,
        served=frozenset(f"{topic}:{number}" for topic, number in earlier.keys() | later.keys()),
        notes=(*open_notes, *notes),
        open_places=frozenset(hidden),
        unserved=unserved,
        topic_ids=ids,
    )


def _places(topics: Collection[str], partitions: Mapping[str, int]) -> list[Place]:
    return [(topic, number) for topic in topics for number in range(partitions[topic])]


def settled_spans(client: Mapping[str, str], topics: Collection[str]) -> dict[Place, Span]:
    """Return first offset and end of the existing logs, once no transaction below the
    ends is open.
    """
    admin = admin_of(client)
    counts = partition_counts(admin)
    return _settled(admin, _places([topic for topic in topics if topic in counts], counts))


def _shards(
    earlier: Mapping[Place, ShardCheckpoint],
    later: Mapping[Place, ShardCheckpoint],
    spans: Mapping[Place, Span],
    ids: Mapping[str, str],
) -> tuple[list[ShardCut], list[str], dict[Place, int]]:
    # The shards that can be judged, a sentence for each other one, and the offsets of those that no
    # checkpoint covers.
    shards: list[ShardCut] = []
    notes: list[str] = []
    unserved: dict[Place, int] = {}
    for place in sorted(earlier.keys() | spans.keys()):
        topic, partition = place
        first, last, span = earlier.get(place), later.get(place), spans.get(place)
        if first is None or last is None:
            why = "is in no checkpoint: no node has served it yet"
        elif span is None:
            why = "is in the checkpoint, and not in the cluster"
        elif ids.get(topic) not in (None, last.topic_id):
            why = "was made anew, and no node has served the new one"
        else:
            notes += [
                f"{topic}:{partition} lost the offsets {lost.first} to {lost.stop - 1}: retention "
                "deleted them before they were settled"
                for lost in last.lost
            ]
            began = first.cursor if first.topic_id == last.topic_id else Cursor()
            cursors = (began, last.cursor)
            one = ShardCut(*place, last.topic_id, *cursors, last.contracts, span, last.lost)
            shards.append(one)
            continue
        notes.append(f"{topic}:{partition} {why}")
        if span is not None and span.end > span.start:
            unserved[place] = span.end - span.start
    return shards, notes, unserved


class _CheckpointReader:
    """Reader of the newest checkpoint of each slice.

    The checkpoints of slice ``s`` are in partition ``s % partitions``, keyed by ``b"%d" % s``. The
    newest one of a busy slice is near the end, that of an idle slice anywhere. So all partitions
    are read backwards from their ends, in growing ranges, until every slice is found; and after
    that, only what was appended since.
    """

    def __init__(
        self, client: Mapping[str, str], topic: str, partitions: Mapping[str, int]
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._places = _places([topic], partitions)
        self._found: dict[int, Checkpoint] = {}
        self._ends: dict[Place, int] = {}

    def newest(self) -> dict[Place, ShardCheckpoint]:
        spans = _settled(admin_of(self._client), self._places)
        if self._ends:
            new = {place: Span(self._ends[place], span.end) for place, span in spans.items()}
            self._found |= self._read(new, known=())
        else:
            self._look_back(spans)
        self._ends = {place: span.end for place, span in spans.items()}
        return {
            (topic, slice_no): shard
            for slice_no, checkpoint in self._found.items()
            for topic, shard in checkpoint.shards.items()
        }

    def _look_back(self, spans: Mapping[Place, Span]) -> None:
        left, look = dict(spans), _FIRST_LOOK
        while left := {
            p: span for p, span in left.items() if span.start < span.end and self._lacks(p)
        }:
            ranges = {p: Span(max(s.start, s.end - look), s.end) for p, s in left.items()}
            self._found |= self._read(ranges, known=self._found.keys())
            left = {p: Span(span.start, ranges[p].start) for p, span in left.items()}
            look *= _GROWTH

    def _lacks(self, place: Place) -> bool:
        # A checkpoint names all delay topics of its slice, and the slices are numbered by the
        # partitions of the largest one. Until one is found, their number is not known.
        topics = {topic for checkpoint in self._found.values() for topic in checkpoint.shards}
        slices = max((self._partitions.get(topic, 0) for topic in topics), default=0)
        mine = range(place[1], slices, len(self._places))
        return not slices or any(slice_no not in self._found for slice_no in mine)

    def _read(self, spans: Mapping[Place, Span], known: Collection[int]) -> dict[int, Checkpoint]:
        values: dict[int, bytes] = {}
        for message in read_logs(self._client, dict(spans)):
            if message.error() is not None:
                raise KafkaEdgeError(
                    f"{message.topic()}:{message.partition()} can't be read at offset "
                    f"{message.offset()}: {message.error().str()}; the user needs Read on the topic"
                )
            slice_no = slice_no_of(message.key())
            if slice_no is None or slice_no % len(self._places) != message.partition():
                continue  # it is none of the service's
            if slice_no not in known and message.value() is not None:
                values[slice_no] = message.value()
        return {
            slice_no: decode_checkpoint_of(slice_no, value) for slice_no, value in values.items()
        }


def _settled(admin: KafkaAdmin, places: Collection[Place]) -> dict[Place, Span]:
    spans, hidden = _spans(admin, places, SETTLE_TIMEOUT_S)
    if hidden:
        topic, partition = min(hidden)
        raise KafkaEdgeError(
            f"a transaction in {topic}:{partition} has been open for {SETTLE_TIMEOUT_S:.0f} s, and "
            "hides what comes after it: find its producer (kafka-transactions.sh find-hanging), "
            "or try again later"
        )
    return spans


def _spans(
    admin: KafkaAdmin, places: Collection[Place], wait_s: float
) -> tuple[dict[Place, Span], set[Place]]:
    # A log with a transaction that stays open ends at that transaction, others at the high
    # watermark.
    ends = offsets_of(admin, places, LATEST)
    waiting, tick = set(ends), threading.Event()
    deadline_s = time.monotonic() + wait_s
    while waiting:
        stable = offsets_of(admin, waiting, LATEST, IsolationLevel.READ_COMMITTED)
        waiting = {place for place in waiting if stable[place] < ends[place]}
        if waiting and time.monotonic() > deadline_s:
            ends |= {place: stable[place] for place in waiting}
            break
        if waiting:
            tick.wait(_TICK_S)
    # After the ends: retention may pass an end that was asked for before.
    starts = offsets_of(admin, places, EARLIEST)
    return {place: Span(starts[place], max(ends[place], starts[place])) for place in ends}, waiting
