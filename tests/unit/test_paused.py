"""What is paused, on its way from the worker to Prometheus and to people."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayservice.config.settings import load
from delayservice.engine.pauses import Pause, Paused, Pauses, decode_pause
from delayservice.metrics import status as status_model
from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_snapshot
from delayservice.metrics.status import PAUSES_TOLD_MAX, pause_facts

ORDERS = Paused("target", "orders*")
TOPIC = Paused("topic", "delay_topic_any")


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def hub_with(pauses: Pauses | None) -> MetricsHub:
    hub = MetricsHub(load(None, ["node.workers=1"], {}))
    hub.update(0, encode_snapshot(Snapshot(1, pauses=pause_facts(pauses))))
    return hub


def since(hub: MetricsHub) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["kind"], sample.labels["name"]): sample.value
        for family in export(hub.facts())
        for sample in family.samples
        if sample.name == "delay_paused_timestamp_seconds"
    }


def counts(hub: MetricsHub) -> dict[str, float]:
    return {
        sample.labels["kind"]: sample.value
        for family in export(hub.facts())
        for sample in family.samples
        if sample.name == "delay_pauses"
    }


def test_a_pause_is_shown_with_its_start_and_reason_on_a_healthy_node() -> None:
    hub = hub_with(Pauses({ORDERS: Pause(2_000, "database move"), TOPIC: Pause(1_000)}))
    assert since(hub) == {("target", "orders*"): 2, ("topic", "delay_topic_any"): 1}
    assert counts(hub) == {"target": 1, "topic": 1}
    status = hub.status()
    assert status.healthy
    assert status.paused == [
        status_model.Pause("topic", "delay_topic_any", 1_000, ""),
        status_model.Pause("target", "orders*", 2_000, "database move"),
    ]


def test_nothing_is_told_while_nothing_is_paused_or_nobody_has_heard() -> None:
    assert since(hub_with(Pauses())) == {}
    assert counts(hub_with(Pauses())) == {"target": 0, "topic": 0}
    assert since(hub_with(None)) == {}
    assert counts(hub_with(None)) == {}
    assert hub_with(None).status().paused == []


def test_the_worker_that_reported_last_speaks_for_all_that_have_heard() -> None:
    time = Time()
    hub = MetricsHub(load(None, ["node.workers=3"], {}), time)
    said: Iterator[Pauses | None] = iter([Pauses({TOPIC: Pause(1_000)}), Pauses(), None])
    for worker in (2, 1, 0):
        hub.update(worker, encode_snapshot(Snapshot(worker, pauses=pause_facts(next(said)))))
        time.now_s += 1
    assert (since(hub), counts(hub)) == ({}, {"target": 0, "topic": 0})
    hub.update(2, encode_snapshot(Snapshot(2, pauses=pause_facts(Pauses({TOPIC: Pause(1_000)})))))
    assert since(hub) == {("topic", "delay_topic_any"): 1}


def test_series_are_bounded_and_the_longest_pauses_have_one_of_their_own() -> None:
    many = {Paused("target", f"t{n}"): Pause(n * 1_000) for n in range(1, 1_001)}
    hub = hub_with(Pauses(many))
    found = since(hub)
    assert len(found) == PAUSES_TOLD_MAX + 1
    assert found["target", "t1"] == 1
    assert found["other", "other"] == PAUSES_TOLD_MAX + 1
    assert counts(hub) == {"target": 1_000, "topic": 0}
    assert hub.status().paused_others == 1_000 - PAUSES_TOLD_MAX


@pytest.mark.parametrize(
    "name", ["a b", 'x"} 1\n', "\x1b[2J", "\N{REPLACEMENT CHARACTER}", "y" * 250]
)
def test_a_name_that_no_topic_can_have_is_counted_and_never_a_label(name: str) -> None:
    hub = hub_with(Pauses({Paused("target", name): Pause(3_000), ORDERS: Pause(4_000)}))
    assert since(hub) == {("target", "orders*"): 4, ("other", "other"): 3}
    assert hub.status().paused_others == 1


@pytest.mark.parametrize("at_ms", [-(10**40), -1, 10**18, 10**40])
def test_no_time_that_somebody_wrote_stops_a_worker_from_reporting(at_ms: int) -> None:
    hub = hub_with(Pauses({TOPIC: decode_pause(b'{"at_ms": %d}' % at_ms)}))
    (told,) = hub.status().paused
    assert told.at_ms == (0 if at_ms < 0 else 253_402_300_799_999)


def test_a_long_reason_is_cut() -> None:
    (told,) = hub_with(Pauses({TOPIC: Pause(1, "why" * 9_999)})).status().paused
    assert len(told.reason) == 200
