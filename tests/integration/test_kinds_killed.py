"""Nodes are killed while records of every kind are under way: each has one outcome."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, await_true, benches, outcomes_by_id
from tests.integration.nodes import is_ready, two_nodes
from tests.integration.test_homes import CANCEL, FIRE, YEAR_MS, await_fences, named

pytestmark = pytest.mark.slow

PARTITIONS = 4
LEVELS_MS = (500, 1_000)
VICTIMS = 600
TRIES = 10
SERIES = 20
TIMES = 5
IF_ABSENT = ("delay-if", "absent")
SETS = (
    "wheel.slots=60",
    "wheel.slot_ms=1s",
    "delivery.roll_window_ms=5s",
    "levels.prefix=delay_topic_{run}_",
    "levels.delays_ms=500,1000",
)
bench = benches(partitions=PARTITIONS, sets=SETS)


class Kinds:
    """Ids that are cancelled, fired, and scheduled if absent, partly away from home, series, and
    records of levels.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.victims = [f"victim {number}" for number in range(VICTIMS)]
        self.series = [f"series {number}" for number in range(SERIES)]
        self.once = [f"once {number}" for number in range(VICTIMS // TRIES)]
        self.controlled, self.recurring, self.leveled, self.throttled = map(
            bench.target, ("ids", "series", "levels", "once")
        )
        self.levels: dict[bytes, int] = {}

    def schedule(self) -> None:
        for number, name in enumerate(self.victims):
            headers = self.bench.to(self.controlled, YEAR_MS, named(name))
            self.bench.send_later(headers, partition=number % PARTITIONS)
        self.bench.producer.flush()
        await_fences(self.bench)
        for number, name in enumerate(self.series):
            how = ("delay-every", "1s") if number % 2 else ("delay-cron", "* * * * * *")
            headers = [("delay-target-topic", self.recurring), how, named(name)]
            self.bench.send_later(
                [*headers, ("delay-times", str(TIMES))], partition=number % PARTITIONS
            )

    def write(self) -> None:
        """Cancel or fire each victim, at one pace, with two records of a level and a try to
        schedule one once beside it.
        """
        pace = threading.Event()
        for number, name in enumerate(self.victims):
            op = FIRE if number % 2 else CANCEL
            self.bench.send_later([named(name), op], partition=(number // 7) % PARTITIONS)
            once = self.bench.to(self.throttled, YEAR_MS, named(self.once[number // TRIES]))
            self.bench.send_later([*once, IF_ABSENT], partition=number % PARTITIONS)
            for level, delay_ms in enumerate(LEVELS_MS, 1):
                value = b"%d-%d" % (level, number)
                self.bench.send_later(
                    [("delay-target-topic", self.leveled)],
                    value=value,
                    partition=number % PARTITIONS,
                    topic=f"{self.bench.any}_{level}",
                    note=partial(self._note, value, delay_ms),
                )
            pace.wait(0.03)
        self.bench.producer.flush()

    def _note(self, value: bytes, delay_ms: int, place: tuple[int, int, int]) -> None:
        self.levels[value] = place[2] + delay_ms

    @contextmanager
    def written(self) -> Iterator[None]:
        writer = threading.Thread(target=self.write)
        writer.start()
        yield
        writer.join()

    def await_all(self) -> None:
        await_fences(self.bench)
        for name in self.once:
            self.bench.send_later([named(name), FIRE], partition=0)
        await_fences(self.bench)
        self.bench.read(self.leveled, len(self.levels), 90)
        self.bench.read(self.recurring, SERIES * TIMES, 90)

    def judge(self) -> None:
        """Read every topic to its end."""
        found = outcomes_by_id(self.bench)
        assert [n for n in self.victims[::2] if found.get(n) != Counter(cancelled=2)] == []
        assert [n for n in self.victims[1::2] if found.get(n) != Counter(fired=1)] == []
        kept = Counter(kept=TRIES - 1, fired=1)
        assert {name: found.get(name) for name in self.once if found.get(name) != kept} == {}
        fired = self.bench.read_all(self.controlled) + self.bench.read_all(self.throttled)
        names = Counter(one.header("delay-id") for one in fired)
        assert names == Counter(self.victims[1::2] + self.once)
        occurrences = Counter(
            (one.header("delay-id"), (one.header("delay-source") or "").partition("#")[2])
            for one in self.bench.read_all(self.recurring)
        )
        numbers = [str(number + 1) for number in range(TIMES)]
        assert occurrences == Counter((name, one) for name in self.series for one in numbers)
        leveled = self.bench.read_all(self.leveled)
        assert Counter(one.value for one in leveled) == Counter(self.levels.keys())
        assert all(one.timestamp_ms >= self.levels[one.value or b""] for one in leveled)
        assert self.bench.read_all(self.bench.dead_letter) == []


@pytest.mark.parametrize("store", ["wheel", pytest.param("rocksdb", marks=pytest.mark.night)])
def test_every_kind_of_record_has_one_outcome_though_nodes_are_killed(
    cluster: EmbeddedCluster, bench: Bench, store: str
) -> None:
    kinds = Kinds(bench)
    with two_nodes(bench, cluster.zookeeper, f"node.store={store}") as group:
        group.start()
        kinds.schedule()
        with kinds.written():
            for kill in (1, 2):  # the second victim, as a rule, has its store from the first kill
                await_true(lambda n=kill: len(kinds.levels) > n * VICTIMS / 2, "some are written")  # type: ignore[misc]
                group.kill_owner(0)
        kinds.await_all()
        for node in group.nodes.values():
            await_true(partial(is_ready, node.service), "it can be stopped in good order", 60)
        group.stop()
    kinds.judge()
