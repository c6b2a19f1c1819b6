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

from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.audit.verdicts import FOUND
from connectors.spark.ledger.facts import LETTER, NEVER_MS, OUTCOME
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import Ledger, name_hash
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
    return sorted(
        (row["kind"], hashes[row["shard"]], row["offset"])
        for row in certain
        if row["verdict"] == FOUND
    )


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
    shards = {}
    for number in range(PARTITIONS):
        cursor = Cursor((said[number]["k"][0], said[number]["k"][1]), said[number]["h"])
        end = life.ends.next[names.delay, number]
        name = f"{names.delay}:{number}"
        shards[name_hash(name)] = ShardRules(name, cursor, cursor, 0, end, contracts)
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
    )
