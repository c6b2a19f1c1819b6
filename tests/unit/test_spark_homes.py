"""What the service's own shards do with ids that find home, judged by the audit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from delayservice.contract.codes import TARGET_DOWN
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import Headers
from delayservice.contract.partitioner import partition_for
from delayservice.engine import outcome
from delayservice.engine.outcome import Output
from tests.unit.spark_world import DELAY, HOMES, LETTERS, OUTCOMES, TARGET, World
from tests.unit.test_home import ROUTES, SECRET, TOPIC, Partition

IDS = [b"%d" % n for n in range(4)]
OUTPUTS = {"to_a": TARGET, ROUTES.dead_letter: LETTERS, ROUTES.outcomes: OUTCOMES}


@dataclass
class Watched(Partition):
    """A partition whose records and outputs are kept for the audit."""

    contracts: Contracts = field(default_factory=lambda: Contracts([(0, HOMES)]))
    world: World = field(default_factory=World)

    def write(self, headers: Headers, value: bytes | None = b"v", key: bytes | None = b"k") -> int:
        self.world.write(DELAY, self.now_ms, headers, value, key, self.number)
        return super().write(headers, value, key)

    def settle(self) -> list[Output]:
        outputs = super().settle()
        for kind, topic, _, key, value, headers, _, _ in outputs:
            if kind not in outcome.COPIES and kind != outcome.FORWARDED:
                self.world.write(OUTPUTS[topic], self.now_ms, headers, value, key)
        return outputs


def turn(partitions: list[Watched], ms: int) -> None:
    """Let time pass, settle, and bring home what is sent there."""
    for one in partitions:
        one.now_ms += ms
    for one in partitions:
        for output in one.settle():
            if output[0] == outcome.FORWARDED:
                partitions[output[2]].arrive([output])


def record(generator: random.Random) -> Headers:
    named = ("delay-id", generator.choice(IDS))
    if generator.random() < 0.4:
        return [named, ("delay-op", generator.choice([b"cancel", b"fire"]))]
    after = ("delay-after", b"%d" % generator.randrange(1, 8_000))
    return [after, ("delay-target-topic", TARGET.encode()), named, ("own", b"1")]


@pytest.mark.parametrize("seed", range(30))
def test_the_audit_finds_nothing_wrong_in_what_the_service_does(seed: int) -> None:
    assert {partition_for(one, 2) for one in IDS} == {0, 1}
    generator = random.Random(seed)
    world = World()
    world.secrets, world.contract = (SECRET,), HOMES
    partitions = [Watched(number, world=world) for number in range(2)]
    sent = waited = 0
    for _ in range(60):
        for one in partitions:
            one.targets.why.clear()
            if generator.random() < 0.4:
                one.targets.why[TOPIC, 1 - one.number] = (TARGET_DOWN, "no leader")
            if generator.random() < 0.6:
                one.write(record(generator))
        turn(partitions, generator.randrange(1, 900))
    for one in partitions:
        one.targets.why.clear()
    for _ in range(40):
        turn(partitions, 1_000)
    for log in (DELAY, world.home):
        sent += sum(dict(row[3]).keys() >= {"delay-home-mac"} for row in world.logs[log])
        waited += sum(
            dict(row[3]).keys() >= {"delay-home", "delay-copy"} for row in world.logs[log]
        )
    assert sent > 5
    assert waited > 5
    world.cursor, world.cursor_at_home = (one.shard.committed for one in partitions)
    world.cut()
    audit = world.audit()
    assert audit.found() == [([], {}, 0)]
    assert audit.counts["forwarded"] > 5
