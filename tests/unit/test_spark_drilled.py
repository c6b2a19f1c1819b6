"""A drill's history, kept in memory and judged without a cluster: all is found, and no more."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.audit.verdicts import FOUND
from connectors.spark.ledger.facts import LETTER, NEVER_MS, OUTCOME
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import Ledger, name_hash
from connectors.spark.ledger.sources import SourceRows
from delay_devtools.drill.history import HistoryWriter, Life
from delay_devtools.drill.judge import judge
from delay_devtools.drill.run import theatre_of
from delay_devtools.drill.scenes import DEFECTS
from delay_devtools.drill.service import ModelShard
from delay_devtools.drill.stage import GRACE_MS, LATE_MS
from delay_devtools.drill.users import TopicNames, Users
from delay_devtools.drill.wire import Header, Place
from delay_devtools.drill.writing import Ends
from delayservice.contract.contracts import Contracts
from delayservice.engine.cursor import Cursor
from tests.unit.spark_world import batch_of_records, verdicts

PARTITIONS = 3
RECORDS = 6_000
NOW_MS = 500_000 * 3_600_000


class Topics(dict[Place, list[tuple[int, int, bytes | None, bytes | None, Sequence[Header]]]]):
    """Committed records by place: ``(offset, at_ms, key, value, headers)``."""


class MemoryWriter:
    """A writer of a drill, into memory."""

    def __init__(self, topics: Topics, ends: Ends) -> None:
        self._topics = topics
        self._ends = ends
        self._written: list[tuple[Place, int]] = []

    def write(
        self,
        place: Place,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        at_ms: int = 0,
    ) -> int:
        offset = self._ends.take(place)
        self._topics.setdefault(place, []).append((offset, at_ms, key, value, list(headers)))
        self._written.append((place, offset))
        return offset

    def flush(self) -> None:
        self._written.clear()

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
        self._written.clear()
        yield
        for place in {place for place, _ in self._written}:
            self._ends.skip(place)
        for place, offset in [] if commit else self._written:
            self._topics[place] = [one for one in self._topics[place] if one[0] != offset]
            self._ends.holes.setdefault(place, []).append(offset)
        self._written.clear()


@pytest.mark.parametrize("seed", [1, 2])
def test_every_defect_of_a_drill_is_found_and_nothing_is_invented(seed: int) -> None:
    rng = random.Random(seed)
    names = TopicNames(f"m{seed}", PARTITIONS, b"secret", 2)
    ends, topics = Ends(), Topics()
    shards = [ModelShard((names.delay, number)) for number in range(PARTITIONS)]
    life = Life(names, "id", shards, NOW_MS, ends)
    theatre = theatre_of(life, [*DEFECTS, *DEFECTS], rng)
    writers: list[Any] = [MemoryWriter(topics, ends) for _ in range(3)]
    HistoryWriter(life, Users(names, rng), theatre, *writers).write(RECORDS, lambda _: None)
    place = (names.delay, 0)
    topics[place] = [one for one in topics[place] if one[0] >= life.gone]
    assert not theatre.waiting
    assert Counter(defect.kind for defect in theatre.defects) == dict.fromkeys(DEFECTS, 2)
    letters, outcomes = names.own("dead_letter"), names.own("outcomes")
    found = [("topics", *one) for one in _found(names, life, topics, letters, outcomes)]
    verdict = judge(theatre.defects, found, life.records, {})
    assert (verdict.missed, verdict.inventions) == ((), ())
    assert verdict.is_good


def _found(
    names: TopicNames, life: Life, topics: Topics, letters: str, outcomes: str
) -> list[tuple[Any, ...]]:
    kept = sorted({topic for topic, _ in topics} | {letters, outcomes, *names.targets})
    checkpoint = names.own("checkpoint")
    said: dict[int, Any] = {}
    for (topic, _), held in sorted(topics.items()):
        for _, _, key, value, _ in held if topic == checkpoint else ():
            said[int(key or b"")] = json.loads(value or b"")["shards"][names.delay]
    contracts = Contracts.from_json(said[0]["contracts"])
    places = [(names.delay, number) for number in range(PARTITIONS)]
    hashes = {name_hash(f"{topic}:{number}"): number for topic, number in places}
    ledger = Ledger(
        dict(zip(places, hashes, strict=True)),
        {topic: name_hash(topic) for topic in kept},
        dict.fromkeys(places, contracts),
        {names.delay: PARTITIONS},
        {letters: LETTER, outcomes: OUTCOME},
        (names.secret,),
    )
    made: list[pa.RecordBatch] = []
    for place, held in topics.items():
        batch = batch_of_records(place, held)
        if place[0] == names.delay:
            made += SourceRows(ledger).of([batch])
        elif place[0] != checkpoint:
            made += OutputRows(ledger).of([batch])
    rules = _rules(names, life, said, contracts, kept, letters, outcomes, topics)
    _, certain = verdicts(made, rules)
    place_of = {number: place for place, number in ledger.shards.items()}
    found = []
    for row in certain:
        if row["verdict"] == FOUND:
            where = (row["target"], row["target_partition"], row["target_offset"])
            output = None if where[0] is None else where
            shard = place_of.get(row["shard"])
            about = where if shard is None else (*shard, row["offset"])
            found.append((row["kind"], *about, output))
    return found


def _rules(
    names: TopicNames,
    life: Life,
    said: dict[int, Any],
    contracts: Contracts,
    kept: Sequence[str],
    letters: str,
    outcomes: str,
    topics: Topics,
) -> Rules:
    shards = {}
    for number in range(PARTITIONS):
        cursor = Cursor((said[number]["k"][0], said[number]["k"][1]), said[number]["h"])
        end = life.ends.next[names.delay, number]
        name = f"{names.delay}:{number}"
        start = 0 if number else life.gone
        born_ms = topics[names.delay, number][0][1] - 600_000 if start else 0
        shards[name_hash(name)] = ShardRules(
            name, cursor, cursor, start, end, contracts, born_ms=born_ms
        )
    return Rules(
        shards=shards,
        topics={name_hash(topic): topic for topic in kept},
        partitions={name_hash(t): 1 if t in (letters, outcomes) else PARTITIONS for t in kept},
        read=frozenset(map(name_hash, kept)),
        dead_letter=name_hash(letters),
        outcomes=name_hash(outcomes),
        delay_topics=frozenset({name_hash(names.delay)}),
        complete_since_ms={},
        seen_ms={
            name_hash(topic): tuple(
                min((one[1] for one in topics.get((topic, n), ())), default=NEVER_MS)
                for n in range(PARTITIONS)
            )
            for topic in names.targets
        },
        late_ms=LATE_MS,
        lag_ms=30_000,
        grace_ms=GRACE_MS,
        unsettled_since_ms=NOW_MS,
        overdue_since_ms=NOW_MS - 6 * 3_600_000,
    )
