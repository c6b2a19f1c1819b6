"""Occurrences, one pending at a time and none twice, and the calendar by which they are due."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest

from delayservice.contract import cron as cron_times
from delayservice.contract.codec import Payload, decode_payload, encode_payload
from delayservice.contract.codes import CRON_INVALID, RecordRefusedError
from delayservice.contract.cron import cron_time
from delayservice.contract.recurrence import Recurrence, encode, following, recurrence_of
from delayservice.contract.requeue import CONTINUES, read_copy
from delayservice.contract.times import parse_instant_ms
from delayservice.engine import outcome
from delayservice.engine.cursor import NO_MARK
from delayservice.engine.outcome import Output, Target
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.inspection.looking import pending_of
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


@pytest.mark.parametrize(
    ("recurrence", "due", "fires"),
    [
        (
            Recurrence(0, "30 2 * * *", "Europe/Berlin"),
            "2027-03-27T02:30+01:00",
            [
                "2027-03-27 02:30:00.000+01:00 ",
                "2027-03-28 03:00:00.000+02:00 moved: clocks skip its time",
                "2027-03-29 02:30:00.000+02:00 ",
                "2027-03-30 02:30:00.000+02:00 ",
                "2027-03-31 02:30:00.000+02:00 ",
            ],
        ),
        (
            Recurrence(0, "30 2 * * *", "Europe/Berlin", left=2, number=0, shift_ms=1),
            "2027-10-31T02:29+02:00",
            [
                "2027-10-31 02:30:00.001+02:00 ",
                "2027-11-01 02:30:00.001+01:00 clocks have changed since the one before",
            ],
        ),
        (Recurrence(HOURLY_MS), "2027-03-28T23:00Z", ["2027-03-28 23:00:00.000+00:00 "]),
        (Recurrence(0, "0 0 30 2 *", number=0), "2027-03-28T23:00Z", []),
        (Recurrence(0, "0 0 1 1 *", "No/Zone"), "2027-03-28T23:00Z", []),
    ],
)
def test_the_next_fires_are_told_in_the_time_of_the_zone(
    recurrence: Recurrence, due: str, fires: list[str]
) -> None:
    due_ms = parse_instant_ms("due", due.encode())
    expires_ms = due_ms if recurrence.every_ms else None
    shown = pending_of(
        ("t", 0), (due_ms, 1), NO_MARK, payload(recurrence, due_ms, expires_ms), whole=True
    )
    assert [f"{one.local} {one.note}" for one in shown.fires] == fires


# --- the calendar, and where clocks change --------------------------------------------------------


BERLIN = "Europe/Berlin"


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


def test_a_cron_expression_whose_times_are_all_skipped_is_searched_for_fifty_years(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = 0

    def counted(cron: str, local: datetime) -> datetime | None:
        nonlocal searches
        searches += 1
        return after(cron, local)

    after = cron_times._after
    monkeypatch.setattr(cron_times, "_after", counted)
    assert cron_time("* 2 * 3 7L", "Europe/Berlin", ms("2026-11-28T00:00:00+00:00")) is None
    assert 40 < searches < 60


def test_the_next_match_is_after_and_not_at() -> None:
    assert cron_time("* * * * *", "UTC", ms("2026-01-01T09:00:00+00:00")) == ms(
        "2026-01-01T09:01:00+00:00"
    )
    assert cron_time("0 9 * * *", "UTC", ms("2026-01-01T09:00:00+00:00") - 1) == ms(
        "2026-01-01T09:00:00+00:00"
    )


def test_seconds_come_first_where_there_are_six_fields() -> None:
    at_ms, found = ms("2026-01-01T00:00:05+00:00"), []
    for _ in range(3):
        following_ms = cron_time("*/20 * * * * *", "UTC", at_ms)
        assert following_ms is not None
        found.append((following_ms - at_ms) // 1_000)
        at_ms = following_ms
    assert found == [15, 20, 20]


def test_some_days_never_come() -> None:
    assert cron_time("0 0 31 2 MON,TUE", "UTC", ms("2026-01-01T00:00:00+00:00")) is not None
    with pytest.raises(RecordRefusedError, match="cron-invalid"):
        cron_time("0 0 31 2 *", "UTC", 0)


@pytest.mark.parametrize(
    ("cron", "zone", "code"),
    [
        ("* * * *", "UTC", "cron-invalid"),
        ("61 * * * *", "UTC", "cron-invalid"),
        ("hourly", "UTC", "cron-invalid"),
        ("* * * * *", "Mars/Olympus", "zone-invalid"),
        ("* * * * *", "Europe", "zone-invalid"),
        ("* * * * *", "../../etc/passwd", "zone-invalid"),
    ],
)
def test_invalid_cron_or_zone_gets_its_error_code(cron: str, zone: str, code: str) -> None:
    with pytest.raises(RecordRefusedError, match=code):
        cron_time(cron, zone, 0)


def test_occurrences_after_the_year_9999_never_come() -> None:
    for after_ms in (2**52, 253_402_300_799_000 - 1):
        for zone in ("UTC", BERLIN):
            assert cron_time("* * * * *", zone, after_ms) is None


@pytest.mark.parametrize("month", range(1, 13))
def test_a_time_that_never_comes_is_none(month: int) -> None:
    assert cron_time(f"0 0 */31 {month} MON#5", BERLIN, ms("2026-01-01T00:00:00+00:00")) is None


# --- cron times around every change of clocks of five years in all zones, against an oracle that lo


START, END = datetime(2024, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
BEFORE, AFTER = 4 * HOUR, 30 * HOUR
ASKED_EVERY: Final = 13
"""A prime number of minutes, so that all minutes of the hour are asked about."""


class Schedule(NamedTuple):
    """A cron expression for all days, and what it means."""

    cron: str
    minutes: range | tuple[int, ...]
    hours: range | tuple[int, ...]
    is_shown: bool
    """True: due whenever the clock shows it; False: due once."""


ANY_HOUR: Final = range(24)
SCHEDULES: Final = (
    Schedule("0 * * * *", (0,), ANY_HOUR, is_shown=True),
    Schedule("30 * * * *", (30,), ANY_HOUR, is_shown=True),
    Schedule("0 */2 * * *", (0,), range(0, 24, 2), is_shown=True),
    Schedule("*/20 * * * *", range(0, 60, 20), ANY_HOUR, is_shown=True),
    Schedule("* 1-3 * * *", range(60), range(1, 4), is_shown=True),
    Schedule("0 0 2 * * *", (0,), (2,), is_shown=True),
    Schedule("0 0 * * *", (0,), (0,), is_shown=False),
    Schedule("15 2 * * *", (15,), (2,), is_shown=False),
    Schedule("45 1,2,23 * * *", (45,), (1, 2, 23), is_shown=False),
    Schedule("5-55/10 0-23/2 * * *", range(5, 60, 10), range(0, 24, 2), is_shown=False),
)


def local(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


def changes() -> Iterator[tuple[str, datetime]]:
    """Yield a zone for each different change of clocks, and an hour in which it is."""
    known = set()
    for name in sorted(available_timezones() - {"localtime"}):
        zone, day = ZoneInfo(name), START
        while day < END:
            before, after = (local(at, zone) - at.replace(tzinfo=None) for at in (day, day + DAY))
            if before != after:
                hours = (day + n * HOUR for n in range(24))
                hour = next(h for h in hours if local(h + HOUR, zone) - local(h, zone) != HOUR)
                if (hour, before, after) not in known:
                    known.add((hour, before, after))
                    yield name, hour
            day += DAY


def expected(schedule: Schedule, shown: list[tuple[datetime, datetime]]) -> list[datetime]:
    """Return the instants at which a schedule is due. ``shown``: each minute, and the local time
    that the clock shows then.
    """

    def is_match(at: datetime) -> bool:
        return at.minute in schedule.minutes and at.hour in schedule.hours

    if schedule.is_shown:
        return [instant for instant, at in shown if is_match(at)]
    due, latest = [], shown[0][1] - MINUTE
    for instant, at in shown:
        came = [latest + n * MINUTE for n in range(1, (at - latest) // MINUTE + 1)]
        if any(map(is_match, came)):
            due.append(instant)
        latest = max(latest, at)
    return due


def test_every_change_of_clocks_is_met_as_the_contract_says() -> None:
    wrong, seen = [], 0
    for name, hour in changes():
        zone = ZoneInfo(name)
        minutes = [hour - BEFORE + n * MINUTE for n in range((BEFORE + AFTER) // MINUTE)]
        shown = [(instant, local(instant, zone)) for instant in minutes]
        for schedule in SCHEDULES:
            due_ms = [int(at.timestamp()) * 1_000 for at in expected(schedule, shown)]
            for after in minutes[: 2 * BEFORE // MINUTE : ASKED_EVERY]:
                after_ms = int(after.timestamp()) * 1_000
                right_ms = due_ms[bisect_right(due_ms, after_ms)]
                seen += 1
                if cron_time(schedule.cron, name, after_ms) != right_ms:
                    wrong.append((schedule.cron, name, str(after)))
    assert seen > 50_000
    assert wrong == []
