"""Lateness counts from the later of due time and writing, by target, and apart where it must."""

from __future__ import annotations

from delayservice.engine import outcome
from delayservice.engine.census import OTHERS
from delayservice.engine.outcome import DELIVERED, PAST_DUE, RESUMED, Output, OutputCounters
from delayservice.metrics.counts import TARGETS_MAX, WorkerMetrics
from delayservice.process.observer import MetricsObserver
from tests.unit.loop_stage import NOW_MS, TOPIC, Stage


class Watched(Stage):
    """One owned slice with the metrics that a worker keeps."""

    def __init__(self) -> None:
        super().__init__(0)
        self.metrics = MetricsObserver()
        self.heard.settled = self.metrics.settled  # type: ignore[method-assign]
        self.own()

    @property
    def punctual(self) -> int:
        return sum(self.metrics.worker.lateness.counts)

    def apart(self, kind: str) -> tuple[int, float]:
        found = self.metrics.worker.apart[kind]
        return sum(found.counts), found.sum_ms


def write_due_at(stage: Stage, due_ms: int) -> None:
    rows = stage.logs.rows.setdefault((TOPIC, 0), [])
    asked = [("delay-at", b"%d" % due_ms), ("delay-target-topic", b"orders")]
    rows.append((len(rows), stage.clock.now_ms, None, b"v", list(asked)))


def test_a_record_of_1970_is_late_by_the_time_since_it_was_written() -> None:
    stage = Watched()
    for _ in range(2):  # before K has passed anything, and after
        write_due_at(stage, 1_000)
        stage.step(10, 4)
    count, sum_ms = stage.apart(PAST_DUE)
    assert count == 2
    assert sum_ms < 200
    assert stage.punctual == 0
    assert stage.metrics.worker.early == 0
    assert stage.metrics.worker.settled == {"delivered": 2}
    assert not stage.lane(0).past_due, "what is settled is forgotten"


def test_a_record_that_was_written_in_time_is_late_by_the_time_since_it_was_due() -> None:
    stage = Watched()
    stage.write(0, 50)
    stage.step(10, 12)
    assert stage.punctual == 1
    assert stage.metrics.worker.lateness.sum_ms < 50
    assert stage.apart(PAST_DUE) == (0, 0)
    assert sum(stage.metrics.worker.targets[TOPIC]["orders"].counts) == 1


def test_lateness_of_postponed_records_is_counted_apart() -> None:
    tally = OutputCounters()
    plain: Output = (DELIVERED, "orders", -1, None, b"v", [], NOW_MS, 1)
    resumed: Output = (DELIVERED, "mails", -1, None, b"v", [], -(NOW_MS + 700), 2)
    late: Output = (DELIVERED, "mails", -1, None, b"v", [], 1_000, 3)
    tally.add([plain, resumed, late], TOPIC, {3: NOW_MS + 900})
    observer = MetricsObserver()
    observer.settled(tally, NOW_MS + 1_000)
    assert observer.worker.lateness.sum_ms == 1_000
    assert observer.worker.apart[RESUMED].sum_ms == 300
    assert observer.worker.apart[PAST_DUE].sum_ms == 100
    assert observer.worker.settled == {"delivered": 3}


def test_only_so_many_past_due_records_are_noted() -> None:
    noted = outcome.PastDue()
    count = outcome.NOTED_MAX + 5
    rows = [(n, 9_000, None, None, None) for n in range(count)]
    noted.note(rows, [(n, 0, 1_000, None, None, None) for n in range(count)])
    assert len(noted) == outcome.NOTED_MAX


def test_targets_beyond_the_first_ones_are_counted_together() -> None:
    metrics = WorkerMetrics()
    for number in range(2 * TARGETS_MAX):
        metrics.delivered(f"delay-{number % 2}", f"target-{number}", [1])
    series = [len(targets) for targets in metrics.targets.values()]
    assert sum(series) == TARGETS_MAX + 2
    others = [sum(targets[OTHERS].counts) for targets in metrics.targets.values()]
    assert others == [TARGETS_MAX // 2] * 2
