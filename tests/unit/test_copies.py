"""Roll and park copies, and the headers that the service adds."""

from __future__ import annotations

import pytest

from delayservice.contract.codec import Payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import COPY, INVALID, Entry, Headers
from delayservice.contract.names import Header
from delayservice.contract.provenance import Provenance, dead_letter_headers
from delayservice.contract.record import RecordReader
from delayservice.contract.requeue import write_copy

OWN: Headers = [("a", b"\xff"), ("b", None), ("a", b"\xff")]
META = (b"\x00id\xff", b"delay_topic_any:3:7", 2, 9_000)
PAYLOAD: Payload = ("orders", 4, b"\x00", b"\xff", OWN, 8_000, META)


def written(
    payload: Payload = PAYLOAD, secret: bytes = b"s1", at_ms: int = 5_000
) -> tuple[bytes | None, bytes | None, Headers]:
    return write_copy(
        "delay_topic_any",
        3,
        secret,
        settles=11,
        source=b"delay_topic_any:3:7",
        base=12,
        at_ms=at_ms,
        payload=payload,
    )


def read(
    record: tuple[bytes | None, bytes | None, Headers],
    secrets: tuple[bytes, ...] = (b"s1",),
    topic: str = "delay_topic_any",
    partition: int = 3,
) -> Entry:
    reader = RecordReader(topic, partition, Contracts([(0, Contract())]), secrets)
    return reader.read(20, 1, *record)


def test_a_copy_is_read_as_it_was_written() -> None:
    assert read(written()) == (20, COPY, 5_000, META[0], PAYLOAD, 12)


def test_a_copy_of_a_plain_record_names_the_source_only() -> None:
    meta = (None, b"delay_topic_any:3:7", 1, None)
    plain: Payload = ("orders", -1, None, None, [], 8_000, None)
    assert read(written(plain)) == (20, COPY, 5_000, None, (*plain[:6], meta), 12)


def test_a_copy_is_accepted_whichever_secret_signed_it() -> None:
    assert read(written(secret=b"old"), secrets=(b"new", b"old"))[1] == COPY


@pytest.mark.parametrize("secrets", [(), (b"other",), (b"",)])
def test_a_copy_that_no_secret_signed_is_forged(secrets: tuple[bytes, ...]) -> None:
    entry = read(written(), secrets=secrets)
    assert entry[1] == INVALID
    assert entry[5][0] == "copy-forged"


def test_a_copy_of_another_shard_is_forged() -> None:
    assert read(written(), topic="delay_topic_other")[1] == INVALID
    assert read(written(), partition=4)[1] == INVALID


@pytest.mark.parametrize(
    "headers",
    [
        [],
        OWN,
        [*OWN, ("delay-copy", None), ("delay-copy-mac", None)],
        [*OWN, ("delay-copy-mac", b"x")],
        [("delay-copy", b"x")],
        [("delay-copy", b"x"), ("delay-copy", b"x"), ("delay-copy-mac", b"x")],
        [("delay-copy", b"\xff"), ("delay-copy-mac", b"\xff")],
    ],
)
def test_half_a_copy_is_no_copy(headers: Headers) -> None:
    assert read((b"k", b"v", headers))[1] == INVALID


@pytest.mark.parametrize("at_ms", [0, -1, 2**53])
def test_a_copy_whose_key_is_out_of_range_is_refused_though_signed(at_ms: int) -> None:
    assert read(written(at_ms=at_ms))[1] == INVALID


@pytest.mark.parametrize("name", ["delay-copy", "delay-copy-mac"])
def test_a_signed_copy_within_a_copy_is_refused(name: str) -> None:
    own: Headers = [(name, b"inner")]
    assert read(written((*PAYLOAD[:4], own, *PAYLOAD[5:])))[1] == INVALID


def test_moved_added_or_removed_headers_make_a_copy_forged() -> None:
    key, value, headers = written()
    variants: list[Headers] = [
        [*headers, ("late", b"")],
        headers[1:],
        [headers[1], headers[0], *headers[2:]],
        [*headers[:-2], headers[-1], headers[-2]],
        [("delay-at", b"1"), *headers],
    ]
    assert [read((key, value, variant))[1] for variant in variants] == [INVALID] * 5


def test_bytes_cannot_move_between_parts_of_a_copy() -> None:
    _, _, headers = written(("orders", 4, b"ab", b"c", OWN, 8_000, META))
    assert read((b"a", b"bc", headers))[1] == INVALID
    _, _, headers = written(("orders", 4, None, b"", OWN, 8_000, META))
    assert read((b"", None, headers))[1] == INVALID


# --- provenance --------------------------------------------------------------------------------


def test_a_plain_output_says_when_it_was_due_and_what_it_settles() -> None:
    expected: Headers = [
        ("delay-due-at", b"8000"),
        ("delay-source", b"delay_topic_any:3:7"),
        ("delay-settles", b"7"),
    ]
    assert Provenance("delay_topic_any", 3).headers(7, 8_000, None) == expected


def test_an_output_of_a_copy_names_the_original_and_its_own_offset() -> None:
    expected: Headers = [
        ("delay-due-at", b"8000"),
        ("delay-source", b"delay_topic_any:3:7"),
        ("delay-settles", b"20"),
        ("delay-id", b"\x00id\xff"),
        ("delay-attempt", b"2"),
    ]
    assert Provenance("delay_topic_any", 3).headers(20, 8_000, META) == expected


def test_the_first_attempt_and_a_missing_id_go_without_saying() -> None:
    added = Provenance("t", 0).headers(1, 2, (None, None, 1, 3))
    assert [name for name, _ in added] == ["delay-due-at", "delay-source", "delay-settles"]
    assert added[1][1] == b"t:0:1"


def test_a_dead_letter_keeps_the_original_headers_and_adds_the_reason_last() -> None:
    original: list[Header] = [("delay-at", b"x"), ("delay-error", b"older"), ("b", None)]
    headers = dead_letter_headers(original, "time-invalid", "why", b"t:0:1")
    assert headers == [
        *original,
        ("delay-error", b"time-invalid"),
        ("delay-error-detail", b"why"),
        ("delay-source", b"t:0:1"),
    ]


def test_the_detail_of_a_dead_letter_is_short_and_printable() -> None:
    headers = dead_letter_headers(None, "too-large", "a\nb\x00\udcff" + "é" * 9_999, b"")
    detail = (headers[1][1] or b"").decode()
    assert len(detail) == 512
    assert detail.isprintable()
