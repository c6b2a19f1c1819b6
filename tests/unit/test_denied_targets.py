"""Whether a target is allowed is judged when a record is settled, by the settings of then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delayservice.contract.codes import TARGET_DENIED
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers
from delayservice.contract.recurrence import Recurrence
from delayservice.contract.targets import Allowlist
from delayservice.engine import outcome
from delayservice.engine.census import OTHERS
from delayservice.engine.outcome import Output
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.inspection.counting import LaneCounts, count_lane
from delayservice.slices.lane import Lane
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.unit.known_targets import KnownTargets, some
from tests.unit.loop_stage import ROUTES as STAGE_ROUTES
from tests.unit.loop_stage import Stage
from tests.unit.test_recurrence import payload as recurring
from tests.unit.test_settle import BLOCKED, NOW_MS, ROUTES, payload, without


def settler(*allow: str, targets: KnownTargets | None = None) -> Settler:
    routes = replace(ROUTES, allowlist=lambda topic: Allowlist(topic, allow))
    return Settler("delay_topic_any", 3, routes, Verdicts(), targets or KnownTargets())


def is_denied(output: Output | None) -> bool:
    assert output is not None
    if output[0] != outcome.DEAD_LETTERED:
        return False
    headers = dict(output[5])
    assert headers["delay-error"] == TARGET_DENIED.encode()
    assert b"orders is not among the targets" in (headers["delay-error-detail"] or b"")
    return True


def test_a_denied_record_is_dead_lettered_when_it_is_due() -> None:
    letter = some(settler("mails").settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert is_denied(letter)
    assert (letter[1], letter[3:5], letter[7]) == ("letters", (b"key", b"value"), 7)
    headers = dict(letter[5])
    assert headers["delay-settles"] == b"7"
    assert headers["delay-target-topic"] == b"orders", "to be sent again as it was"
    assert not is_denied(settler("orders").settle(7, NOW_MS, payload(), NOW_MS, 8))


def test_a_denied_record_is_not_fired() -> None:
    assert is_denied(settler().fire(7, payload(NOW_MS + 50_000), NOW_MS, 9))


@pytest.mark.parametrize("blocked", [None, {("orders", -1): BLOCKED}])
def test_a_denied_record_is_not_parked(blocked: dict[tuple[str, int], tuple[str, str]]) -> None:
    targets = KnownTargets(blocked)
    assert is_denied(settler(targets=targets).settle(7, NOW_MS, payload(), NOW_MS, 8))


def test_a_denied_schedule_is_neither_armed_nor_gone_on_with() -> None:
    unarmed = recurring(Recurrence(0, "hourly"), NOW_MS)
    every = recurring(Recurrence(5_000, number=4))
    for record in (unarmed, every):
        by = settler()
        letter = some(by.settle(7, NOW_MS, record, NOW_MS, 8))
        assert is_denied(letter)
        assert by.following(letter, 7, record, NOW_MS, 8) is None


def test_a_denied_record_whose_letter_cannot_be_written_is_judged_again_later() -> None:
    by = settler(targets=without("letters"))
    due = some(by.settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert due[0] == outcome.PARKED
    far = some(by.settle(7, NOW_MS - 1, payload(NOW_MS + 50_000), NOW_MS, 8))
    assert far[0] == outcome.ROLLED, "as parked it would count as fired, and be early if allowed"


def test_without_settings_nothing_is_allowed() -> None:
    routes = replace(ROUTES, allowlist=Allowlist)
    bare = Settler("delay_topic_any", 3, routes, Verdicts(), KnownTargets())
    assert is_denied(bare.settle(4, NOW_MS, payload(), NOW_MS, 8))


def stage(*allow: str) -> tuple[Stage, Lane]:
    made = Stage()
    routes = replace(STAGE_ROUTES, allowlist=lambda topic: Allowlist(topic, allow))
    store = DigestingStore(MemoryStore())
    lane = Lane("delay_topic_any", 0, "t", store, made.logs, routes, targets=made.targets)
    lane.adopt(Contracts([(0, Contract())]))
    made.loop.add_lanes(0, [lane])
    made.own()
    return made, lane


def written_to(made: Stage, *targets: bytes) -> None:
    rows = made.logs.rows["delay_topic_any", 0] = []
    for target in targets:
        headers: Headers = [("delay-after", b"60000"), ("delay-target-topic", target)]
        rows.append((len(rows), made.clock.now_ms, None, b"v", headers))
    made.step(10, 4)


def test_a_denied_target_is_not_looked_up_and_has_no_metrics_of_its_own() -> None:
    made, lane = stage("mails")
    written_to(made, b"orders", b"mails")
    assert made.targets.expected == {("mails", -1)}
    counts = count_lane(lane, made.clock.now_ms, LaneCounts())
    assert counts.targets.keys() == {"mails", OTHERS}


@pytest.mark.parametrize("topic", ["payments", "my-orders", "Orders", "order"])
def test_a_target_that_no_pattern_matches_as_a_whole_is_denied(topic: str) -> None:
    allowlist = Allowlist("delay_topic_any", ["orders*"])
    assert "not among the targets" in (allowlist.denial(topic) or "")
    assert allowlist.denial("orders2") is None


def test_a_flood_of_allowed_names_takes_bounded_memory() -> None:
    allowlist = Allowlist("delay_topic_any", ["*"])
    for number in range(5_000):
        assert allowlist.denial(f"to_{number}") is None
        assert allowlist.denial(f"delay_{number}") is not None
    assert 0 < len(allowlist.good) <= 1_024
