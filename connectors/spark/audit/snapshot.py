"""Encodes a cut and its evidence as JSON, so that an archive can be judged at it later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from connectors.spark.audit.evidence import Evidence
from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.log_times import Policy
from connectors.spark.common.topics import Place, Span
from delayservice.base.errors import DelayServiceError
from delayservice.contract.contracts import Contracts
from delayservice.engine.cursor import Cursor

VERSION: Final = 1


class _Log(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition of any topic at a cut, with its values in ``Cut`` and ``Evidence``. ``span``,
    ``read``: first offset and exclusive end of the log, and of the records that are read of it.
    """

    topic: str
    partition: int
    span: tuple[int, int]
    read: tuple[int, int]
    seen_ms: int | None = None
    complete_ms: int | None = None
    is_open: bool = False

    @property
    def place(self) -> Place:
        return self.topic, self.partition


class _Shard(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    topic_id: str
    earlier: Cursor
    later: Cursor
    contracts: Any
    start: int
    judged: int


class _Snapshot(msgspec.Struct, frozen=True):
    taken_ms: int
    dead_letter: str
    outcomes: str
    partitions: Mapping[str, int]
    topic_ids: Mapping[str, str]
    policies: Mapping[str, Policy]
    served: frozenset[str]
    notes: tuple[str, ...]
    logs: tuple[_Log, ...]
    shards: tuple[_Shard, ...]
    unserved: tuple[tuple[str, int, int], ...] = ()
    v: int = VERSION


def encode(cut: Cut, evidence: Evidence) -> str:
    """Return a cut and its evidence as JSON text, which ``decode`` reads."""
    logs = tuple(
        _Log(
            *place,
            (span.start, span.end),
            (evidence.spans[place].start, evidence.spans[place].end),
            evidence.seen_ms.get(place),
            evidence.complete_ms.get(place),
            place in cut.open_places,
        )
        for place, span in sorted(cut.spans.items())
    )
    shards = tuple(
        _Shard(
            *shard.place,
            shard.topic_id,
            shard.earlier,
            shard.later,
            shard.contracts.to_json(),
            evidence.starts[shard.place],
            evidence.judged[shard.place],
        )
        for shard in cut.shards
    )
    found = _Snapshot(
        cut.taken_ms,
        cut.dead_letter,
        cut.outcomes,
        cut.partitions,
        cut.topic_ids,
        evidence.policies,
        cut.served,
        cut.notes,
        logs,
        shards,
        tuple((*place, count) for place, count in sorted(cut.unserved.items())),
    )
    return msgspec.json.encode(found).decode()


def decode(text: str) -> tuple[Cut, Evidence]:
    """Return the cut, and the other facts to judge by (``Evidence``), from the text that ``encode``
    returned.

    Raises:
        DelayServiceError: the text has another version or format.
    """
    try:
        found = msgspec.json.decode(text, type=_Snapshot)
    except msgspec.MsgspecError as exc:
        raise DelayServiceError(f"this is no cut of an archive: {exc}") from exc
    if found.v != VERSION:
        raise DelayServiceError(
            f"the cut is of version {found.v}, and this reads {VERSION}: upgrade it"
        )
    spans = {log.place: Span(*log.span) for log in found.logs}
    places = {(shard.topic, shard.partition) for shard in found.shards}
    shards = tuple(
        ShardCut(
            s.topic,
            s.partition,
            s.topic_id,
            s.earlier,
            s.later,
            Contracts.from_json(s.contracts),
            spans[s.topic, s.partition],
        )
        for s in found.shards
    )
    cut = Cut(
        taken_ms=found.taken_ms,
        shards=shards,
        others={place: span for place, span in spans.items() if place not in places},
        partitions=found.partitions,
        served=found.served,
        notes=found.notes,
        open_places=frozenset(log.place for log in found.logs if log.is_open),
        unserved={(topic, number): count for topic, number, count in found.unserved},
        topic_ids=found.topic_ids,
        dead_letter=found.dead_letter,
        outcomes=found.outcomes,
    )
    evidence = Evidence(
        spans={log.place: Span(*log.read) for log in found.logs},
        starts={(s.topic, s.partition): s.start for s in found.shards},
        judged={(s.topic, s.partition): s.judged for s in found.shards},
        seen_ms={log.place: log.seen_ms for log in found.logs if log.seen_ms is not None},
        complete_ms={
            log.place: log.complete_ms for log in found.logs if log.complete_ms is not None
        },
        policies=found.policies,
    )
    return cut, evidence
