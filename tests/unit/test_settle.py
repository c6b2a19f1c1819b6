"""How one record is settled, and that its target is judged by the settings of that moment."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from delayservice.contract.codec import Payload
from delayservice.contract.codes import (
    TARGET_ASKED,
    TARGET_DENIED,
    TARGET_LATER,
    TARGET_REFUSED,
    TARGET_UNKNOWN,
    TOO_LARGE,
)
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers
from delayservice.contract.recurrence import Recurrence, encode
from delayservice.contract.targets import Allowlist
from delayservice.engine import outcome
from delayservice.engine.census import OTHERS
from delayservice.engine.outcome import Output, Routes
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.inspection.counting import LaneCounts, count_lane
from delayservice.slices.lane import Lane
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.unit.known_targets import KnownTargets, some
from tests.unit.lanes import routes_of
from tests.unit.loop_stage import ROUTES as STAGE_ROUTES
from tests.unit.loop_stage import Stage
from tests.unit.test_recurrence import payload as recurring

ROUTES = routes_of(10_000, 100, 1_000)
NOW_MS = 5_000_000


def payload(due_ms: int = NOW_MS, attempt: int = 1, expires_ms: int | None = None) -> Payload:
    meta = (None, None, attempt, expires_ms)
    return ("orders", -1, b"key", b"value", [("own", b"1")], due_ms, meta)


def settler(
    blocked: tuple[str, str] | None = None,
    refused: dict[int, tuple[str, str]] | None = None,
    stripped: set[int] | None = None,
    routes: Routes = ROUTES,
) -> Settler:
    """``blocked``: why nothing can be delivered to ``orders``."""
    targets = KnownTargets({} if blocked is None else {("orders", -1): blocked})
    verdicts = Verdicts(refused or {}, stripped or set())
    return Settler("delay_topic_any", 3, routes, verdicts, targets=targets)


class Takes(KnownTargets):
    """Targets that can be written to, but refuse what is sent there, for this reason."""

    def __init__(self, topic: str, code: str) -> None:
        super().__init__()
        self.refusals = {topic: (code, "why")}

    def refusal(self, *record: object) -> tuple[str, str] | None:
        return self.refusals.get(str(record[0]))


def without(topic: str) -> KnownTargets:
    """Targets while one of the service's own topics is not there."""
    return KnownTargets({(topic, -1): (TARGET_UNKNOWN, f"{topic} does not exist")})


def settler_of(targets: KnownTargets) -> Settler:
    return Settler("delay_topic_any", 3, ROUTES, Verdicts(), targets=targets)


BLOCKED = ("target-unknown", "topic orders does not exist")


def test_a_record_that_was_put_off_is_late_from_the_instant_on_until_which() -> None:
    delivered = some(settler().settle(7, NOW_MS - 20, payload(NOW_MS - 900), NOW_MS, 8))
    assert delivered[0] == outcome.DELIVERED
    assert delivered[6:] == (20 - NOW_MS, 7)


def test_settling_again_after_an_abort_gives_the_same() -> None:
    again, record = settler(), payload()
    assert again.settle(7, NOW_MS, record, NOW_MS, 8) == again.settle(7, NOW_MS, record, NOW_MS, 8)


def test_a_record_that_is_not_due_waits_and_one_at_its_roll_time_is_rolled() -> None:
    later = payload(NOW_MS + 50_000)
    assert settler().settle(7, NOW_MS + 50_000, later, NOW_MS, 8) is None
    rolled = some(settler().settle(7, NOW_MS - 1, later, NOW_MS, 8))
    assert rolled[:3] == (outcome.ROLLED, "delay_topic_any", 3)


def test_a_missing_target_is_waited_for_only_if_settings_want_it() -> None:
    at_once = replace(ROUTES, parks_missing=False)
    missing = some(settler(blocked=BLOCKED, routes=at_once).settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert missing[:2] == (outcome.DEAD_LETTERED, "letters")
    down = settler(blocked=("target-down", "no leader"), routes=at_once)
    parked = some(down.settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert parked[0] == outcome.PARKED


def test_a_blocked_target_parks_its_record_until_the_attempts_are_used_up() -> None:
    kinds = []
    for attempt in (1, 2, 3):
        output = some(
            settler(blocked=BLOCKED).settle(7, NOW_MS, payload(attempt=attempt), NOW_MS, 8)
        )
        kinds.append(output[0])
    assert kinds == [outcome.PARKED, outcome.PARKED, outcome.DEAD_LETTERED]


PAUSED = ("target-paused", "somebody said so")
ASKED = ("target-asked", "topic orders is being looked up")


def held_until_ms(settle: Settler, due_ms: int, now_ms: int, attempt: int = 1) -> tuple[int, int]:
    """When the copy that puts a record off comes up, and its attempt."""
    output = some(settle.settle(7, min(due_ms, now_ms), payload(due_ms, attempt), now_ms, 8))
    assert output[:3] == (outcome.PARKED, "delay_topic_any", 3)
    fields = json.loads(dict(output[5])["delay-copy"] or b"")
    return int(fields["at"]), int(fields["attempt"])


def test_a_paused_target_is_no_attempt_and_a_long_pause_a_longer_wait() -> None:
    held = settler(PAUSED, routes=replace(ROUTES, held_ms=800, roll_window_ms=10**9))
    for attempt in (1, 2, 9):
        at_ms, tried = held_until_ms(held, NOW_MS, NOW_MS, attempt)
        assert NOW_MS + 800 <= at_ms <= NOW_MS + 1_200
        assert tried == attempt
    for late_ms, least_ms in ((8_000, 1_000), (40_000, 5_000), (10**7, 8_000)):
        at_ms, _ = held_until_ms(held, NOW_MS - late_ms, NOW_MS)
        assert NOW_MS + least_ms <= at_ms <= NOW_MS + 3 * least_ms // 2


def test_a_postponed_record_is_requeued_before_retention() -> None:
    held = settler(PAUSED, routes=replace(ROUTES, held_ms=60_000))
    parked = settler(BLOCKED, routes=replace(ROUTES, park_delays_ms=(60_000,)))
    for postponed in (held, parked):
        assert held_until_ms(postponed, NOW_MS, NOW_MS)[0] == NOW_MS + ROUTES.roll_window_ms


def test_a_roll_waits_no_longer_than_any_contract_that_may_apply() -> None:
    # Settings of 10 s were never a contract of the record that is appended, or will not be.
    rolling = settler()
    entries = [(0, 90_000), (5, 4_000), (9, 60_000)]
    rolling.requeuer.contracts = Contracts([(n, Contract(roll_window_ms=ms)) for n, ms in entries])
    for offset, window_ms in ((7, 4_000), (20, ROUTES.roll_window_ms)):
        rolled = some(rolling.settle(offset, NOW_MS - 1, payload(NOW_MS + 70_000), NOW_MS, 8))
        fields = json.loads(dict(rolled[5])["delay-copy"] or b"")
        assert fields["at"] == NOW_MS + window_ms


def test_a_postponed_fire_differs_from_a_roll() -> None:
    held = settler(PAUSED, routes=replace(ROUTES, held_ms=800))
    output = some(held.fire(7, payload(NOW_MS + 5_000), NOW_MS, 9))
    assert output[0] == outcome.PARKED
    fields = json.loads(dict(output[5])["delay-copy"] or b"")
    assert fields["attempt"] == 2
    again = some(settler().settle(8, fields["at"], payload(NOW_MS + 5_000, 2), fields["at"], 9))
    assert again[0] == outcome.FIRED


def test_where_nothing_can_be_put_off_a_paused_record_waits() -> None:
    held = settler(PAUSED)
    held.requeuer.topic = None
    assert held.settle(7, NOW_MS, payload(), NOW_MS, 8) is None
    assert held.fire(7, payload(NOW_MS + 5_000), NOW_MS, 9) is None


def test_while_the_cluster_is_asked_for_a_target_its_record_waits_and_is_not_parked() -> None:
    asked = settler(ASKED)
    assert asked.settle(7, NOW_MS, payload(), NOW_MS, 8) is None
    assert asked.fire(7, payload(NOW_MS + 5_000), NOW_MS, 9) is None
    last_attempt = payload(attempt=9)
    assert asked.settle(7, NOW_MS, last_attempt, NOW_MS, 8) is None
    asked.requeuer.topic = None
    assert asked.settle(7, NOW_MS, payload(), NOW_MS, 8) is None


def test_a_record_waiting_for_a_target_lookup_expires_and_rolls() -> None:
    asked = settler(ASKED)
    expired = asked.settle(7, NOW_MS, payload(expires_ms=NOW_MS - 1), NOW_MS, 8)
    rolled = asked.settle(7, NOW_MS - 1, payload(NOW_MS + 50_000), NOW_MS, 8)
    assert expired is not None
    assert rolled is not None
    assert (expired[0], rolled[0]) == (outcome.EXPIRED, outcome.ROLLED)


def test_a_target_that_is_known_to_be_fit_is_not_asked_for_again() -> None:
    by = settler(BLOCKED)
    assert isinstance(by.targets, KnownTargets)
    by.targets.writable.add(("orders", -1))
    output = some(by.settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert output[0] == outcome.DELIVERED


# --- what a topic takes --------------------------------------------------------------------------


def test_waiting_for_a_later_transaction_is_no_attempt() -> None:
    later = settler_of(Takes("orders", TARGET_LATER))
    output = some(later.settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert output[:3] == (outcome.PACED, "delay_topic_any", 3)
    fields = json.loads(dict(output[5])["delay-copy"] or b"")
    assert NOW_MS + 200 <= fields["at"] <= NOW_MS + 300
    assert (fields["attempt"], fields["turn"]) == (1, fields["at"])
    late = some(later.settle(7, NOW_MS, payload(NOW_MS - 8_000), NOW_MS, 8))
    assert json.loads(dict(late[5])["delay-copy"] or b"")["at"] >= NOW_MS + 1_000


def test_a_record_too_large_for_its_target_is_dead_lettered_at_once() -> None:
    for code in ("too-large", "target-refused"):
        output = some(settler_of(Takes("orders", code)).settle(7, NOW_MS, payload(), NOW_MS, 8))
        assert output[:2] == (outcome.DEAD_LETTERED, "letters")
        assert dict(output[5])["delay-error"] == code.encode()


def test_a_large_record_is_compared_with_what_even_a_fit_target_takes() -> None:
    targets = Takes("orders", "too-large")
    targets.writable.add(("orders", -1))
    by = settler_of(targets)
    small = by.settle(7, NOW_MS, payload(), NOW_MS, 8)
    large = by.settle(7, NOW_MS, (*payload()[:3], b"x" * 600_000, *payload()[4:]), NOW_MS, 8)
    headers = by.settle(
        7, NOW_MS, (*payload()[:4], [("own", b"x" * 600_000)], *payload()[5:]), NOW_MS, 8
    )
    assert [one[0] for one in (small, large, headers) if one] == [
        outcome.DELIVERED,
        outcome.DEAD_LETTERED,
        outcome.DEAD_LETTERED,
    ]


class TakesNoContent(Takes):
    def refusal(self, *record: object) -> tuple[str, str] | None:
        return super().refusal(*record) if record[2] is not None else None


def test_a_letter_that_its_topic_never_takes_is_sent_without_content() -> None:
    by = settler_of(TakesNoContent("letters", "too-large"))
    letter = some(by.undelivered.dead_letter(7, (b"k", b"v" * 100, []), "time-missing", "no time"))
    assert letter[3:5] == (None, None)
    assert dict(letter[5])["delay-error"] == b"time-missing"


# --- a topic of the service's own that takes nothing ---------------------------------------------


def test_a_record_waits_while_an_own_topic_is_looked_up() -> None:
    targets, last = without("letters"), payload(attempt=3)
    targets.why["letters", -1] = targets.why["outcomes", -1] = (TARGET_ASKED, "being looked up")
    targets.why["orders", -1] = BLOCKED
    by = settler_of(targets)
    assert by.settle(7, NOW_MS, last, NOW_MS, 8) is None
    assert by.settle(7, NOW_MS, payload(expires_ms=NOW_MS - 1), NOW_MS, 8) is None


@pytest.mark.parametrize("code", [TARGET_LATER, TOO_LARGE, TARGET_REFUSED])
def test_records_for_a_failing_own_topic_wait_and_are_not_sent(code: str) -> None:
    by = settler_of(Takes("letters", code))
    assert by.undelivered.dead_letter(7, (b"k", b"v", []), "time-missing", "no time") is None
    by = settler_of(Takes("outcomes", code))
    assert by.undelivered.control(outcome.NOT_PENDING, 7, b"a") is None
    assert by.undelivered.cancelled(outcome.CANCELLED, 7, b"a", 8) is None
    expired = some(by.settle(7, NOW_MS, payload(expires_ms=NOW_MS - 1), NOW_MS, 8))
    assert expired[:2] == (outcome.PARKED, "delay_topic_any")


def test_while_copies_can_not_be_appended_only_what_needs_one_waits() -> None:
    targets = without("nothing")
    targets.why["delay_topic_any", 3] = ("target-unavailable", "not enough replicas")
    targets.why["blocked", -1] = BLOCKED
    by = settler_of(targets)
    parked, far = ("blocked", *payload()[1:]), payload(NOW_MS + 50_000)
    often = (*payload()[:6], (b"id", None, 1, None, encode(Recurrence(every_ms=1_000, number=1))))
    delivered = some(by.settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert delivered[0] == outcome.DELIVERED
    assert by.settle(7, NOW_MS - 1, far, NOW_MS, 8) is None
    assert by.settle(7, NOW_MS, parked, NOW_MS, 8) is None
    assert by.settle(7, NOW_MS, often, NOW_MS, 8) is None
    assert by.fire(7, parked, NOW_MS, 9) is None
    targets.why["delay_topic_any", 3] = PAUSED
    rolled = some(by.settle(7, NOW_MS - 1, far, NOW_MS, 8))
    assert rolled[0] == outcome.ROLLED


def test_without_an_outcomes_topic_nothing_expires() -> None:
    by = settler_of(without("outcomes"))
    output = some(by.settle(7, NOW_MS, payload(expires_ms=NOW_MS - 1), NOW_MS, 8))
    assert output[:2] == (outcome.PARKED, "delay_topic_any")
    by.requeuer.topic = None
    assert by.settle(7, NOW_MS, payload(expires_ms=NOW_MS - 1), NOW_MS, 8) is None


# --- whether a target is allowed is judged when a record is settled, by the settings of then ------


def settler_allowing(*allow: str, targets: KnownTargets | None = None) -> Settler:
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
    letter = some(settler_allowing("mails").settle(7, NOW_MS, payload(), NOW_MS, 8))
    assert is_denied(letter)
    assert (letter[1], letter[3:5], letter[7]) == ("letters", (b"key", b"value"), 7)
    headers = dict(letter[5])
    assert headers["delay-settles"] == b"7"
    assert headers["delay-target-topic"] == b"orders", "to be sent again as it was"
    assert not is_denied(settler_allowing("orders").settle(7, NOW_MS, payload(), NOW_MS, 8))


def test_a_denied_record_is_not_fired() -> None:
    assert is_denied(settler_allowing().fire(7, payload(NOW_MS + 50_000), NOW_MS, 9))


@pytest.mark.parametrize("blocked", [None, {("orders", -1): BLOCKED}])
def test_a_denied_record_is_not_parked(blocked: dict[tuple[str, int], tuple[str, str]]) -> None:
    targets = KnownTargets(blocked)
    assert is_denied(settler_allowing(targets=targets).settle(7, NOW_MS, payload(), NOW_MS, 8))


def test_a_denied_schedule_is_neither_armed_nor_gone_on_with() -> None:
    unarmed = recurring(Recurrence(0, "hourly"), NOW_MS)
    every = recurring(Recurrence(5_000, number=4))
    for record in (unarmed, every):
        by = settler_allowing()
        letter = some(by.settle(7, NOW_MS, record, NOW_MS, 8))
        assert is_denied(letter)
        assert by.following(letter, 7, record, NOW_MS, 8) is None


def test_a_denied_record_whose_letter_cannot_be_written_is_judged_again_later() -> None:
    by = settler_allowing(targets=without("letters"))
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
