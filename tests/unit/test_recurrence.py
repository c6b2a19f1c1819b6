"""Occurrences: one pending at a time, none twice, none caught up with."""

from __future__ import annotations

import pytest

from delayservice.contract.codec import Payload, decode_payload, encode_payload
from delayservice.contract.codes import CRON_INVALID, RecordRefusedError
from delayservice.contract.recurrence import Recurrence, encode, following, recurrence_of
from delayservice.contract.requeue import CONTINUES, read_copy
from delayservice.engine import outcome
from delayservice.engine.outcome import Output, Target
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from tests.unit.known_targets import KnownTargets, some
from tests.unit.lanes import routes_of

NOW_MS = 5_000_000
SOURCE = b"delay_topic_any:3:7"
HOURLY_MS = 3_600_000


def calendar(cron: str, zone: str, after_ms: int) -> int | None:
    """Every hour; ``never`` never, ``bad`` is none."""
    assert zone
    if cron == "bad":
        raise RecordRefusedError(CRON_INVALID, "no such thing")
    return None if cron == "never" else (after_ms // HOURLY_MS + 1) * HOURLY_MS


ROUTES = routes_of(10_000, 100, cron_time=calendar)
BLOCKED = {("orders", -1): ("target-unknown", "topic orders does not exist")}


def payload(recurrence: Recurrence, due_ms: int = NOW_MS, expires_ms: int | None = None) -> Payload:
    meta = (b"name", SOURCE + b"#4", 1, expires_ms, encode(recurrence))
    return ("orders", -1, b"key", b"value", [("own", b"1")], due_ms, meta)


def settler(
    blocked: dict[Target, tuple[str, str]] | None = None,
    refused: dict[int, tuple[str, str]] | None = None,
) -> Settler:
    verdicts = Verdicts(refused or {})
    return Settler("delay_topic_any", 3, ROUTES, verdicts, targets=KnownTargets(blocked))


def settled(
    record: Payload,
    now_ms: int = NOW_MS,
    blocked: dict[Target, tuple[str, str]] | None = None,
    refused: dict[int, tuple[str, str]] | None = None,
) -> list[Output]:
    """Everything that settles the record at offset 9 and goes with it."""
    by = settler(blocked, refused)
    output = some(by.settle(9, record[5], record, now_ms, 12))
    again = by.following(output, 9, record, now_ms, 12)
    return [output] if again is None else [output, again]


def copied(output: Output) -> tuple[int, int, Payload]:
    return some(read_copy("delay_topic_any", 3, [b"secret"], (output[3], output[4], output[5])))


def test_the_transaction_that_delivers_one_appends_the_next() -> None:
    delivered, again = settled(payload(Recurrence(5_000, number=4)))
    assert delivered[0] == outcome.DELIVERED
    assert ("delay-source", SOURCE + b"#4") in delivered[5]
    assert again[:3] == (outcome.RECURRED, "delay_topic_any", 3)
    base, at_ms, record = copied(again)
    assert (base, at_ms, record[5]) == (12, NOW_MS + 5_000, NOW_MS + 5_000)
    assert record[6] is not None
    assert record[6][:4] == (b"name", SOURCE + b"#5", 1, None)
    assert recurrence_of(record[6]) == Recurrence(5_000, number=5)
    assert b'"settles":%d' % CONTINUES in (dict(again[5])["delay-copy"] or b"")


def test_an_occurrence_beyond_the_window_is_rolled_as_any_record() -> None:
    base, at_ms, record = copied(settled(payload(Recurrence(60_000)))[1])
    assert (base, at_ms, record[5]) == (12, NOW_MS + 10_000, NOW_MS + 60_000)
    rolled = some(settler().settle(20, at_ms, record, at_ms, 21))
    assert rolled[0] == outcome.ROLLED
    assert recurrence_of(copied(rolled)[2][6]) == Recurrence(60_000, number=2)


def test_it_ends_with_its_last_time_and_with_its_expiry() -> None:
    assert len(settled(payload(Recurrence(5_000, left=2)))) == 2
    assert len(settled(payload(Recurrence(5_000, left=1)))) == 1
    assert len(settled(payload(Recurrence(5_000), expires_ms=NOW_MS + 5_000))) == 2
    assert len(settled(payload(Recurrence(5_000), expires_ms=NOW_MS + 4_999))) == 1
    assert len(settled(payload(Recurrence(0, "never")))) == 1


def test_an_undelivered_occurrence_has_no_next_one() -> None:
    # A dead letter says how to begin again; a parked one goes on when it arrives.
    record = payload(Recurrence(5_000, left=3))
    (parked,) = settled(record, blocked=BLOCKED)
    assert parked[0] == outcome.PARKED
    assert recurrence_of(copied(parked)[2][6]) == Recurrence(5_000, left=3)
    (letter,) = settled(record, refused={9: ("too-large", "why")})
    assert letter[0] == outcome.DEAD_LETTERED
    said = dict(letter[5])
    assert (said["delay-every"], said["delay-times"]) == (b"5000", b"3")
    (expired,) = settled(payload(Recurrence(5_000), expires_ms=NOW_MS - 1))
    assert expired[0] == outcome.EXPIRED


def cron_record(cron: str, start_ms: int = 0) -> Payload:
    """As it was written: its first occurrence is not known."""
    unarmed = Recurrence(0, cron, number=0, start_ms=start_ms)
    return ("orders", -1, None, b"", [], NOW_MS, (None, None, 1, None, encode(unarmed)))


@pytest.mark.parametrize("cron", ["never", "bad"])
def test_a_cron_schedule_waits_until_its_letter_can_be_written(cron: str) -> None:
    missing = {("letters", -1): ("target-unknown", "topic letters does not exist")}
    (put_off,) = settled(cron_record(cron), blocked=missing)
    assert put_off[:2] == (outcome.PARKED, "delay_topic_any")
    copy = copied(put_off)[2]
    assert recurrence_of(copy[6]) == Recurrence(0, cron, number=0)
    (again,) = settled(copy, blocked=missing)
    assert again[0] == outcome.PARKED
    (letter,) = settled(copied(again)[2])
    assert letter[0] == outcome.DEAD_LETTERED
    said = dict(letter[5])
    assert (said["delay-source"], said["delay-cron"]) == (b"delay_topic_any:3:9", cron.encode())


def test_a_cron_schedule_that_means_nothing_is_dead_lettered() -> None:
    for cron in ("bad", "never"):
        (letter,) = settled(cron_record(cron))
        assert letter[0] == outcome.DEAD_LETTERED
        assert dict(letter[5])["delay-error"] == b"cron-invalid"
        assert dict(letter[5])["delay-cron"] == cron.encode()


def test_a_calendar_that_forgets_a_zone_ends_the_schedule_visibly() -> None:
    delivered, letter = settled(payload(Recurrence(0, "bad", left=5)))
    assert (delivered[0], letter[0]) == (outcome.DELIVERED, outcome.DEAD_LETTERED)
    said = dict(letter[5])
    assert said["delay-settles"] == b"%d" % CONTINUES
    assert (said["delay-times"], said["delay-at"]) == (b"4", b"%d" % (NOW_MS + 1))


def test_stores_keep_a_recurrence() -> None:
    record = payload(Recurrence(0, "0 9 * * *", "Europe/Berlin", 7, 3, 1))
    assert decode_payload(encode_payload(record)) == record
    plain = (*record[:6], (b"name", None, 1, None))
    assert decode_payload(encode_payload(plain)) == plain


def test_nothing_follows_what_does_not_recur() -> None:
    plain: Payload = ("orders", -1, None, b"", [], NOW_MS, (b"name", None, 1, None))
    assert following(plain, SOURCE, NOW_MS, calendar) is None


def test_a_window_moves_every_occurrence_by_as_much() -> None:
    shift_ms = 90_000
    cron = cron_record("hourly")
    shifted = Recurrence(0, "hourly", number=0, shift_ms=shift_ms)
    first = copied(settled((*cron[:6], (None, None, 1, None, encode(shifted))))[0])[2]
    assert first[5] == 2 * HOURLY_MS + shift_ms
    assert copied(settled(first, first[5])[1])[2][5] == 3 * HOURLY_MS + shift_ms
    assert copied(settled(first, 3 * HOURLY_MS + 1)[1])[2][5] == 3 * HOURLY_MS + shift_ms


def test_a_cron_schedule_that_was_just_written_can_be_fired() -> None:
    by = settler()
    record = by.pending_occurrence(9, cron_record("hourly"))
    fired = some(by.fire(9, record, NOW_MS, 11))
    assert fired[0] == outcome.FIRED
    assert ("delay-source", b"delay_topic_any:3:9#1") in fired[5]
    again = some(by.following(fired, 9, record, NOW_MS, 12))
    assert copied(again)[2][5] == 3 * HOURLY_MS
    bad = some(by.fire(9, by.pending_occurrence(9, cron_record("bad")), NOW_MS, 11))
    assert bad[0] == outcome.DEAD_LETTERED
