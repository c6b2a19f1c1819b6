import json
from dataclasses import replace

from delayservice.core import outcome
from delayservice.core.codec import Payload
from delayservice.core.settle import Routes, Settler, Verdicts
from delayservice.cron import cron_time
from tests.unit.known_targets import KnownTargets

ROUTES = Routes(
    dead_letter="letters",
    outcomes="outcomes",
    secret=b"secret",
    roll_window_ms=10_000,
    roll_spread_ms=0,
    park_delays_ms=(100, 1_000),
    cron_time=cron_time,
)
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


BLOCKED = ("target-unknown", "topic orders does not exist")


def test_a_due_record_is_delivered_with_its_provenance() -> None:
    kind, topic, partition, key, value, headers, due_ms, offset = (
        settler().settle(7, NOW_MS, payload(), NOW_MS, 8) or (0,) * 8
    )
    assert (kind, topic, partition, key, value) == (
        outcome.DELIVERED,
        "orders",
        -1,
        b"key",
        b"value",
    )
    assert (due_ms, offset) == (NOW_MS, 7)
    assert headers == [
        ("own", b"1"),
        ("delay-due-at", b"5000000"),
        ("delay-source", b"delay_topic_any:3:7"),
        ("delay-settles", b"7"),
    ]


def test_settling_again_after_an_abort_gives_the_same() -> None:
    again, record = settler(), payload()
    assert again.settle(7, NOW_MS, record, NOW_MS, 8) == again.settle(7, NOW_MS, record, NOW_MS, 8)


def test_a_record_that_is_not_due_waits_and_one_at_its_roll_time_is_rolled() -> None:
    later = payload(NOW_MS + 50_000)
    assert settler().settle(7, NOW_MS + 50_000, later, NOW_MS, 8) is None
    rolled = settler().settle(7, NOW_MS - 1, later, NOW_MS, 8)
    assert rolled is not None
    assert rolled[:3] == (outcome.ROLLED, "delay_topic_any", 3)


def test_a_blocked_target_parks_its_record_until_the_attempts_are_used_up() -> None:
    kinds = []
    for attempt in (1, 2, 3):
        output = settler(blocked=BLOCKED).settle(7, NOW_MS, payload(attempt=attempt), NOW_MS, 8)
        assert output is not None
        kinds.append(output[0])
    assert kinds == [outcome.PARKED, outcome.PARKED, outcome.DEAD_LETTERED]


def test_an_expired_record_is_expired_even_when_its_target_is_blocked() -> None:
    late = payload(expires_ms=NOW_MS - 1)
    output = settler(blocked=BLOCKED).settle(7, NOW_MS, late, NOW_MS, 8)
    assert output is not None
    assert output[:2] == (outcome.EXPIRED, "outcomes")


def test_a_refused_record_is_dead_lettered_whole() -> None:
    output = settler(refused={7: ("too-large", "why")}).settle(7, NOW_MS, payload(), NOW_MS, 8)
    assert output is not None
    assert output[:2] == (outcome.DEAD_LETTERED, "letters")
    assert output[3:5] == (b"key", b"value")
    assert dict(output[5])["delay-error"] == b"too-large"


def test_a_dead_letter_that_is_refused_too_says_only_where_the_record_is() -> None:
    both = settler(refused={7: ("too-large", "why")}, stripped={7})
    valid = both.settle(7, NOW_MS, payload(), NOW_MS, 8)
    invalid = both.dead_letter(7, (b"k", b"v" * 100, [("a", b"1")]), "time-missing", "no time")
    assert valid is not None
    for output, code in ((valid, b"too-large"), (invalid, b"time-missing")):
        headers = dict(output[5])
        assert output[3:5] == (None, None)
        assert headers["delay-error"] == code
        assert headers["delay-source"] == b"delay_topic_any:3:7"
        assert b"left out" in (headers["delay-error-detail"] or b"")
        assert not headers.keys() & {"own", "a"}


PAUSED = ("target-paused", "somebody said so")
ASKED = ("target-asked", "topic orders is being looked up")


def held_until_ms(settle: Settler, due_ms: int, now_ms: int, attempt: int = 1) -> tuple[int, int]:
    """When the copy that puts a record off comes up, and its attempt."""
    output = settle.settle(7, min(due_ms, now_ms), payload(due_ms, attempt), now_ms, 8)
    assert output is not None
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


def test_what_is_put_off_is_read_again_before_the_log_forgets_it() -> None:
    held = settler(PAUSED, routes=replace(ROUTES, held_ms=60_000))
    assert held_until_ms(held, NOW_MS, NOW_MS)[0] == NOW_MS + ROUTES.roll_window_ms


def test_what_is_fired_before_its_time_and_put_off_is_told_from_what_is_rolled() -> None:
    held = settler(PAUSED, routes=replace(ROUTES, held_ms=800))
    output = held.fire(7, payload(NOW_MS + 5_000), NOW_MS, 9)
    assert output is not None
    assert output[0] == outcome.PARKED
    fields = json.loads(dict(output[5])["delay-copy"] or b"")
    assert fields["attempt"] == 2
    again = settler().settle(8, fields["at"], payload(NOW_MS + 5_000, 2), fields["at"], 9)
    assert again is not None
    assert again[0] == outcome.FIRED


def test_where_nothing_can_be_put_off_a_paused_record_waits() -> None:
    held = settler(PAUSED)
    held.copies_to = None
    assert held.settle(7, NOW_MS, payload(), NOW_MS, 8) is None
    assert held.fire(7, payload(NOW_MS + 5_000), NOW_MS, 9) is None


def test_while_the_cluster_is_asked_for_a_target_its_record_waits_and_is_not_parked() -> None:
    asked = settler(ASKED)
    assert asked.settle(7, NOW_MS, payload(), NOW_MS, 8) is None
    assert asked.fire(7, payload(NOW_MS + 5_000), NOW_MS, 9) is None
    last_attempt = payload(attempt=9)
    assert asked.settle(7, NOW_MS, last_attempt, NOW_MS, 8) is None
    asked.copies_to = None
    assert asked.settle(7, NOW_MS, payload(), NOW_MS, 8) is None


def test_what_waits_for_an_answer_expires_and_is_rolled_as_if_nobody_had_asked() -> None:
    asked = settler(ASKED)
    expired = asked.settle(7, NOW_MS, payload(expires_ms=NOW_MS - 1), NOW_MS, 8)
    rolled = asked.settle(7, NOW_MS - 1, payload(NOW_MS + 50_000), NOW_MS, 8)
    assert expired is not None
    assert rolled is not None
    assert (expired[0], rolled[0]) == (outcome.EXPIRED, outcome.ROLLED)


def test_a_target_that_is_known_to_be_fit_is_not_asked_for_again() -> None:
    by = settler(BLOCKED)
    assert isinstance(by.targets, KnownTargets)
    by.targets.fit.add(("orders", -1))
    output = by.settle(7, NOW_MS, payload(), NOW_MS, 8)
    assert output is not None
    assert output[0] == outcome.DELIVERED
