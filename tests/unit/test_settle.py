from delayservice.core import outcome
from delayservice.core.codec import Payload
from delayservice.core.settle import Routes, Settler, Verdicts
from delayservice.cron import cron_time

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


def settler(**verdicts: object) -> Settler:
    return Settler("delay_topic_any", 3, ROUTES, Verdicts(**verdicts))  # type: ignore[arg-type]


BLOCKED = {("orders", -1): ("target-unknown", "topic orders does not exist")}


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
