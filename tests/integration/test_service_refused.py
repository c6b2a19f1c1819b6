"""What can't be delivered: dead letters from hostile input, parked records, records too large."""

from __future__ import annotations

import pytest

from tests.integration.bench import Bench, Header, Seen, served
from tests.integration.raw_producer import produce_raw

PARK_MS = (600, *[1_500] * 10)
WINDOW_MS = 2_000
SOUND_LATE_MS_MAX = 10_000
ADDED = ("delay-error", "delay-error-detail", "delay-source", "delay-settles")


SETS = (
    "wheel.slots=60",
    "wheel.slot_ms=1s",
    f"delivery.roll_window_ms={WINDOW_MS}",
    f"delivery.park_delays_ms={','.join(map(str, PARK_MS))}",
    "delivery.max_delay_ms=1h",
    "delivery.header_bytes_max=1024",
    "delivery.past_due=dead-letter",
    "node.store=memory",
    "levels.prefix=delay_topic_{run}_",
    "levels.delays_ms=200",
)
bench = served(sets=SETS)


@pytest.fixture(scope="module")
def target(bench: Bench) -> str:
    return bench.target("sound")


def letters(bench: Bench, count: int, since: int = 0) -> list[Seen]:
    """Dead letters of source offsets from ``since`` on."""
    return bench.await_match(
        bench.dead_letter, lambda one: int(one.header("delay-settles") or 0) >= since, count
    )


def hostile(bench: Bench, target: str) -> list[tuple[str, list[Header]]]:
    """Return a record or two of each code; ``tests/unit/test_header_table.py`` has them all."""
    after: Header = ("delay-after", "0")
    to: Header = ("delay-target-topic", target)
    return [
        ("time-missing", [to, ("trace", b"\xff")]),
        ("time-invalid", [to, ("delay-after", b"\xff\xfe")]),
        ("time-invalid", [to, ("delay-after", None)]),
        ("time-ambiguous", [to, after, ("delay-at", "4102444800000")]),
        ("time-past", [to, ("delay-at", "1000")]),
        ("delay-too-long", [to, ("delay-at", "9" * 400)]),
        ("target-missing", [after]),
        ("target-invalid", [after, ("delay-target-topic", b"a\x00b")]),
        ("target-invalid", [after, ("delay-target-topic", "../../etc/passwd")]),
        *(
            ("target-denied", [after, ("delay-target-topic", name)])
            for name in ("__consumer_offsets", bench.any, bench.dead_letter, bench.checkpoint)
        ),
        ("op-invalid", [after, to, ("delay-op", "explode")]),
        ("cron-invalid", [to, ("delay-cron", "$(reboot)")]),
        ("zone-invalid", [to, ("delay-cron", "* * * * *"), ("delay-timezone", "../../etc/x")]),
        ("header-too-large", [after, to, ("delay-id", b"x" * 513)]),
        ("header-too-large", [after, ("delay-target-topic", "t" * 500_000)]),
        ("copy-forged", [("delay-copy", b"{}"), ("delay-copy-mac", b"00")]),
    ]


def test_hostile_records_are_dead_lettered_byte_for_byte_and_the_shard_goes_on(
    bench: Bench, target: str
) -> None:
    cases = hostile(bench, target)
    key, value = b"\x00k\xff", b"\xfe\x00v"
    _, first, _ = bench.send(bench.to(target, 0), value=b"before")
    offsets = [bench.send(headers, key=key, value=value)[1] for _, headers in cases]
    bench.send(bench.to(target, 0), value=b"after")
    assert {one.value for one in bench.read(target, 2)} >= {b"before", b"after"}
    found = letters(bench, len(cases), first)
    assert [int(one.header("delay-settles") or -1) for one in found] == offsets
    for (code, headers), offset, letter in zip(cases, offsets, found, strict=True):
        as_bytes = [(n, v.encode() if isinstance(v, str) else v) for n, v in headers]
        assert letter.header("delay-error") == code, headers
        assert (letter.key, letter.value) == (key, value)
        assert letter.headers[: -len(ADDED)] == as_bytes
        assert tuple(name for name, _ in letter.headers[-len(ADDED) :]) == ADDED
        assert letter.header("delay-source") == f"{bench.any}:0:{offset}"
        assert len(letter.header("delay-error-detail") or "") in range(1, 513)


@pytest.mark.parametrize("name", [b"\xff\xfe-name", b"trace\0id", b"delay-id\0x", b"\0"])
@pytest.mark.parametrize("kind", ["delay", "level"])
def test_a_record_with_an_unreadable_header_name_is_dead_lettered(
    bench: Bench, target: str, name: bytes, kind: str
) -> None:
    topic = f"{bench.any}_1" if kind == "level" else bench.any
    to: list[Header] = [("delay-target-topic", target)]
    sound = to if kind == "level" else [("delay-after", "0"), *to]
    for _ in range(100):  # until Python has optimised the loop that reads headers
        bench.send_later([*sound, ("näme" * 40, b"x" * 300)], topic=topic)
    bench.producer.flush()
    headers = [(known.encode(), str(value).encode()) for known, value in sound]
    produce_raw(bench.bootstrap, topic, [*headers, (name, b"x")], key=b"raw", value=b"\xffraw")
    _, last, _ = bench.send(sound, key=name, value=b"after", topic=topic)
    bench.await_match(
        target, lambda one: one.key == name and one.header("delay-source") == f"{topic}:0:{last}"
    )

    source = f"{topic}:0:{last - 1}"
    (letter,) = [
        one for one in bench.read_all(bench.dead_letter) if one.header("delay-source") == source
    ]
    assert letter.header("delay-error") == "header-invalid"
    assert (letter.key, letter.value) == (b"raw", b"\xffraw")
    assert tuple(added for added, _ in letter.headers) == ADDED


# --- parked --------------------------------------------------------------------------------------


def test_a_record_waits_for_its_target_and_holds_nobody_up(bench: Bench, target: str) -> None:
    missing = bench.target_name("created_meanwhile")
    _, offset, _ = bench.send(bench.to(missing, 0, ("own", b"\xff")), key=b"k", value=b"parked")
    bench.await_match(bench.any, lambda one: one.value == b"parked" and one.header("delay-copy"))
    _, _, appended_ms = bench.send(bench.to(target, 100), key=b"beside")
    bench.target("created_meanwhile")
    (one,) = bench.read(missing, 1)
    assert (one.key, one.value, one.own) == (b"k", b"parked", [("own", b"\xff")])
    assert one.header("delay-source") == f"{bench.any}:0:{offset}"
    assert int(one.header("delay-attempt") or 0) > 1
    assert int(one.header("delay-settles") or 0) > offset
    (beside,) = bench.await_match(target, lambda seen: seen.key == b"beside")
    assert 0 <= beside.timestamp_ms - appended_ms - 100 <= SOUND_LATE_MS_MAX


# --- too large -----------------------------------------------------------------------------------


def test_a_record_whose_copy_outgrows_the_delay_topic_is_a_dead_letter(
    bench: Bench, target: str
) -> None:
    bench.alter(bench.any, max_message_bytes="20000")
    headers = bench.to(target, 2 * WINDOW_MS, ("own", b"1"))
    _, offset, appended_ms = bench.send(headers, key=b"k", value=b"x" * 19_700)
    bench.send(bench.to(target, 2 * WINDOW_MS), key=b"later", value=b"rolls")
    (letter,) = letters(bench, 1, offset)
    assert (letter.header("delay-error"), letter.value) == ("too-large", b"x" * 19_700)
    assert letter.header("delay-at") == str(appended_ms + 2 * WINDOW_MS)
    bench.await_match(target, lambda one: one.key == b"later")
