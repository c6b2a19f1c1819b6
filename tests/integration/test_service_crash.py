"""The service is killed under load, again and again; a judge that knows only Kafka compares."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from delay_devtools.child import START_S
from delay_devtools.service import ServiceProcess
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, counts, judge
from delayservice.smoke.load import Batch, Loaded, LoadPlan, load
from tests.integration.bench import Bench, await_true, benches

RECORDS = 4_000
PER_S = 1_000
SEED = 7
SIZE = 200
DELAY_MS_MAX = 3_000
SLICES = 2
SERVED_S_MAX = 20.0
"""A predecessor's open transaction is aborted at once; its time-out would be 45 s."""
ROLL_SETS = ("wheel.slots=60", "wheel.slot_ms=1s", "delivery.roll_window_ms=1500ms")


class Load:
    """Records sent at a steady rate while the service has its troubles, and judged afterwards."""

    def __init__(self, bench: Bench, records: int = RECORDS, per_s: int = PER_S) -> None:
        targets = (bench.target("one", 3), bench.target("two", 3))
        client = {"bootstrap.servers": bench.bootstrap}
        batch = Batch(b"troubles", records, SIZE, SEED, is_mixed=True)
        self._judge = Helper(judge, JudgePlan(client, targets, batch))
        loading = LoadPlan(client, bench.any, targets, batch, span_ms=DELAY_MS_MAX, per_s=per_s)
        self._load = Helper(load, loading)

    def finish(self) -> None:
        """Send no more."""
        self._load.tell()

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._judge, self._load:
            self._load.tell()
            yield

    def judged(self, stop: Callable[[], int]) -> Verdict:
        """Everything that arrived, once all has and the service was stopped in good order."""
        loaded = self._load.expect(Loaded)
        wanted = loaded.n - loaded.withdrawn
        await_true(lambda: self._judge.count >= wanted, "all records arrived", 60)
        assert stop() == 0
        self._judge.tell(loaded)
        return self._judge.expect(Verdict)


def assert_exactly_once(verdict: Verdict) -> None:
    assert verdict.is_good, (counts(verdict), verdict.examples)
    assert not verdict.strangers


bench = benches(partitions=SLICES, sets=ROLL_SETS)


def served(bench: Bench, *sets: str, fault: str = "") -> ServiceProcess:
    """A service in its place of work; one that a fault kills on the way there is as good."""
    service = bench.start(*sets, fault=fault)

    def serves() -> bool:
        return len({event["slice"] for event in service.events("took_over")}) == SLICES

    await_true(
        lambda: serves() or service.events("worker_died"),
        "the service serves, or its fault was met",
        START_S,
    )
    return service


@pytest.mark.slow
@pytest.mark.parametrize("store", ["wheel", "rocksdb"])
def test_a_service_killed_at_random_moments_delivers_exactly_once(bench: Bench, store: str) -> None:
    rng = random.Random(store)
    load = Load(bench)
    service = served(bench, f"node.store={store}")
    with load.running():
        for _ in range(2):
            threading.Event().wait(rng.uniform(0.1, 1.2))  # the moment is random on purpose
            service.kill()
            service = served(bench, f"node.store={store}")
        assert_exactly_once(load.judged(service.stop))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["wheel"])
def test_at_least_once_loses_nothing_when_the_service_is_killed(bench: Bench, store: str) -> None:
    rng = random.Random(store)
    load = Load(bench)
    sets = (f"node.store={store}", "delivery.mode=at_least_once")
    service = served(bench, *sets)
    with load.running():
        for _ in range(2):
            threading.Event().wait(rng.uniform(0.3, 1.2))  # the moment is random on purpose
            service.kill()
            service = served(bench, *sets)
        verdict = load.judged(service.stop)
    # What was delivered is delivered again after a crash, then also before its cancel is read.
    verdict.duplicated = verdict.unwanted = 0
    assert_exactly_once(verdict)


FAULTS = (
    "take_over:kill:1",
    "after_append:kill:30",
    "before_produce:kill:8",
    "flushed:kill:8",
    "before_commit:kill:10",
    "after_commit:kill:8",
    "before_prune:kill:6",
    "after_prune:kill:6",
)


@pytest.mark.slow
def test_a_worker_that_dies_at_any_point_of_a_transaction_delivers_exactly_once(
    bench: Bench,
) -> None:
    load = Load(bench, records=100_000, per_s=250)
    met = []
    with load.running():
        for fault in FAULTS:
            # Every life of the worker meets the fault again; the last one has none.
            # Faults are counted in each worker, so one has to own all slices.
            service = served(bench, "node.workers=1", fault=fault)
            died = partial(service.events, "worker_died")
            await_true(died, f"a worker met {fault}", SERVED_S_MAX)
            met.append(fault)
            service.kill()
        load.finish()
        service = served(bench)
        assert_exactly_once(load.judged(service.stop))
    assert met == list(FAULTS)
