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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import IsolationLevel

from connectors.kafka.clients import KafkaAdmin, admin_client
from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.log_ends import EARLIEST, LATEST, offsets_of
from connectors.kafka.scan import consumer_config, scan_partition
from connectors.kafka.topic_facts import topic_ids
from connectors.spark.common.topics import Place, Span, native_options
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint, decode_checkpoint
from delayservice.engine.claims import slice_no_of
from delayservice.engine.cursor import Cursor

_FIRST_LOOK: Final = 512
# Factor by which each range of offsets that is read is longer than the one before. It limits the
# number of reads; in a compacted log most offsets hold no record.
_GROWTH: Final = 4


@dataclass(slots=True)
class CheckpointLog:
    """One partition of the checkpoint topic, read backwards from its end: down to ``read_from``,
    with ``look`` offsets in the next read. ``found``: newest checkpoint of each slice so far.

    The checkpoints of slice ``s`` are in partition ``s % partitions``, keyed by ``b"%d" % s``. The
    newest one of a busy slice is near the end, that of an idle slice anywhere: so each partition is
    read once, in growing ranges, until every slice is found.
    """

    config: Mapping[str, Any]
    topic: str
    partition: int
    partitions: int
    start: int
    read_from: int
    look: int = _FIRST_LOOK
    found: dict[int, bytes] = field(default_factory=dict)

    def lacks(self, slices: int) -> bool:
        """Return whether a slice's checkpoint may be below; ``slices``: 0 if not known yet."""
        if self.read_from <= self.start:
            return False
        mine = range(self.partition, slices, self.partitions)
        return not slices or any(slice_no not in self.found for slice_no in mine)

    def look_back(self) -> None:
        since, until = max(self.start, self.read_from - self.look), self.read_from
        stretch: dict[int, bytes] = {}
        for run in scan_partition(self.config, self.topic, self.partition, since, until):
            for row in run.rows:
                slice_no = self._slice_of(row[2])
                if slice_no is not None and row[3] is not None:
                    stretch[slice_no] = row[3]
        self.found = stretch | self.found
        self.read_from = since
        self.look *= _GROWTH

    def _slice_of(self, key: bytes | None) -> int | None:
        slice_no = slice_no_of(key)
        is_here = slice_no is not None and slice_no % self.partitions == self.partition
        return slice_no if is_here else None


def newest_checkpoints(
    logs: Iterable[CheckpointLog], partitions: Mapping[str, int]
) -> dict[int, Checkpoint]:
    """Return the newest checkpoint of each slice from all partitions of the checkpoint topic.

    A checkpoint names all delay topics of its slice. So the topic with the most partitions among
    all checkpoints gives the number of slices.
    """
    read = list(logs)
    found: dict[int, Checkpoint] = {}
    slices = 0
    while lacking := [log for log in read if log.lacks(slices)]:
        for log in lacking:
            log.look_back()
        found = _decoded(read, found)
        slices = _slices(found.values(), partitions)
    return found


def _decoded(
    logs: Sequence[CheckpointLog], known: Mapping[int, Checkpoint]
) -> dict[int, Checkpoint]:
    found = dict(known)
    for log in logs:
        for slice_no in log.found.keys() - found.keys():
            checkpoint = decode_checkpoint(log.found[slice_no])
            if checkpoint.slice_no != slice_no:
                raise KafkaEdgeError(
                    f"the checkpoint of slice {slice_no} is of slice {checkpoint.slice_no}; "
                    "something else writes to the checkpoint topic: find it, and restrict the "
                    "topic to the delay service"
                )
            found[slice_no] = checkpoint
    return found


def _slices(checkpoints: Iterable[Checkpoint], partitions: Mapping[str, int]) -> int:
    # The slices are numbered by the partitions of the largest delay topic.
    topics = {topic for checkpoint in checkpoints for topic in checkpoint.shards}
    return max((partitions.get(topic, 0) for topic in topics), default=0)


# Longest wait for open transactions in the checkpoint topic, in s: longer than a broker leaves the
# transaction of a dead producer open.
SETTLE_TIMEOUT_S: Final = 150.0
# Longest wait for open transactions in other topics than the checkpoint topic, in s: longer than
# the service's own transactions take.
OPEN_WAIT_S: Final = 15.0
TICK_S: Final = 0.1
# Calls message.headers() from C, for the reason given in connectors.kafka.scan.
headers_of: Final = methodcaller("headers")


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
    lost: tuple[tuple[int, int], ...] = ()

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
    chosen = set(choose(partitions.keys())) & partitions.keys()
    taken_ms = time.time_ns() // 1_000_000
    # The delay topics last: they then hold every record that an output names.
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
    """Return first offset and end of the existing logs, once no transaction below the
    ends is open.
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
                "deleted them before they were settled"
                for lost in last.lost
            ]
            began = first.cursor if first.topic_id == last.topic_id else Cursor()
            shards.append(
                ShardCut(
                    *place,
                    last.topic_id,
                    began,
                    last.cursor,
                    last.contracts,
                    spans[place],
                    last.lost,
                )
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
    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = native_options(client)
        self.admin: KafkaAdmin = admin_client(self._client)

    def checkpoints(self, topic: str, partitions: Mapping[str, int]) -> dict[int, Checkpoint]:
        config = consumer_config(self._client, "spark-cut")
        count = partitions[topic]
        spans = self.settled_spans([(topic, number) for number in range(count)])
        logs = [
            CheckpointLog(config, *place, count, span.start, span.end)
            for place, span in spans.items()
        ]
        return newest_checkpoints(logs, partitions)

    def settled_spans(self, places: Collection[Place]) -> dict[Place, Span]:
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
        # A log with a transaction that stays open ends at that transaction, others at the high
        # watermark.
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
