"""A drill's history, kept in memory and judged without a cluster: all is found, and no more."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from connectors.spark.audit.judge import CERTAIN, FOUND
from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.audit.verdicts import LINE, PASSED, Court, IdCourt, Passed
from connectors.spark.ledger.facts import LETTER, NEVER_MS, OUTCOME
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import SCHEMA, Ledger
from connectors.spark.ledger.sources import SourceRows
from delayservice.core.contract import Contracts
from delayservice.core.cursor import Cursor
from delayservice.dev.drill.history import History, Life
from delayservice.dev.drill.run import UNACCOUNTED
from delayservice.dev.drill.sabotage import LATE_MS, Saboteur
from delayservice.dev.drill.service import Shard
from delayservice.dev.drill.users import Names, Users
from delayservice.dev.drill.wire import Header, Place
from delayservice.dev.drill.writing import Ends
from tests.unit.spark_world import batch_of_records

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
    names = Names(f"m{seed}", PARTITIONS, b"secret", 2)
    ends, topics = Ends(), Topics()
    shards = [Shard((names.delay, number)) for number in range(PARTITIONS)]
    life = Life(names, "id", shards, NOW_MS, ends)
    kinds = list(itertools.islice(itertools.cycle([*Saboteur.KINDS, UNACCOUNTED]), 60))
    letters, outcomes = names.own("dead_letter"), names.own("outcomes")
    saboteur = Saboteur(
        [kind for kind in kinds if kind != UNACCOUNTED],
        RECORDS,
        rng,
        names.targets,
        PARTITIONS,
        letters,
        outcomes,
        ends.holes,
    )
    writers: list[Any] = [MemoryWriter(topics, ends) for _ in range(3)]
    History(life, Users(names, rng), saboteur, *writers).write(
        RECORDS, kinds.count(UNACCOUNTED), lambda _: None
    )
    wanted = sorted(
        (kind, partition, offset)
        for defect in saboteur.defects
        for kind, _, partition, offset, _ in defect.findings
    )
    assert _found(names, life, topics, letters, outcomes) == wanted


def _found(
    names: Names, life: Life, topics: Topics, letters: str, outcomes: str
) -> list[tuple[str, int, int]]:
    kept = sorted({topic for topic, _ in topics} | {letters, outcomes, *names.targets})
    numbers = {topic: number for number, topic in enumerate(kept)}
    checkpoint = names.own("checkpoint")
    said: dict[int, Any] = {}
    for (topic, _), held in sorted(topics.items()):
        for _, _, key, value, _ in held if topic == checkpoint else ():
            said[int(key or b"")] = json.loads(value or b"")["shards"][names.delay]
    contracts = Contracts.from_json(said[0]["contracts"])
    ledger = Ledger(
        {(names.delay, number): number for number in range(PARTITIONS)},
        numbers,
        {(names.delay, number): contracts for number in range(PARTITIONS)},
        dict.fromkeys(range(PARTITIONS), (0, 2**63 - 1)),
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
    table = pa.Table.from_batches(made, SCHEMA).sort_by(
        [("shard", "ascending"), ("offset", "ascending"), ("role", "ascending")]
    )
    rules = _rules(names, life, said, contracts, kept, letters, outcomes, topics)
    judged = [row for b in Court(rules).judge(table.to_batches()) for row in b.to_pylist()]
    by_id = [row for row in judged if row["verdict"] == LINE or row["when"]]
    by_id.sort(key=lambda row: (row["shard"], row["record_id"], row["offset"]))
    passed = {
        number: Passed(
            (r["offset"], r["at_ms"])
            for r in judged
            if (r["verdict"], r["shard"]) == (PASSED, number)
        )
        for number in range(PARTITIONS)
    }
    certain = [row for row in judged if row["verdict"] == FOUND and row["when"] == CERTAIN]
    for batch in IdCourt(rules, passed).judge([pa.RecordBatch.from_pylist(by_id)]):
        certain += batch.to_pylist()
    return sorted((row["kind"], row["shard"], row["offset"]) for row in certain)


def _rules(
    names: Names,
    life: Life,
    said: dict[int, Any],
    contracts: Contracts,
    kept: Sequence[str],
    letters: str,
    outcomes: str,
    topics: Topics,
) -> Rules:
    shards = []
    for number in range(PARTITIONS):
        cursor = Cursor((said[number]["k"][0], said[number]["k"][1]), said[number]["h"])
        end = life.ends.next[names.delay, number]
        name = f"{names.delay}:{number}"
        shards.append(ShardRules(name, cursor, cursor, 0, end, end, contracts))
    return Rules(
        shards=tuple(shards),
        topics=tuple(kept),
        partitions=tuple(1 if topic in (letters, outcomes) else PARTITIONS for topic in kept),
        read=frozenset(range(len(kept))),
        dead_letter=kept.index(letters),
        outcomes=kept.index(outcomes),
        delay_topics=frozenset({kept.index(names.delay)}),
        complete_since_ms={},
        seen_ms={
            kept.index(topic): tuple(
                min((one[1] for one in topics.get((topic, n), ())), default=NEVER_MS)
                for n in range(PARTITIONS)
            )
            for topic in names.targets
        },
        late_ms=LATE_MS,
        lag_ms=30_000,
    )
