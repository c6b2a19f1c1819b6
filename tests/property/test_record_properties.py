"""Whatever bytes come in: one entry out, never an exception, and nothing forged."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from delayservice.contract import names
from delayservice.contract.codec import Meta, Payload, decode_payload, encode_payload
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import CANCEL, COPY, FIRE, INVALID, SCHEDULE, Headers
from delayservice.contract.input_headers import INPUT
from delayservice.contract.names import Header
from delayservice.contract.provenance import dead_letter_headers
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import recurs
from delayservice.contract.requeue import write_copy
from delayservice.engine.cursor import START_KEY
from delayservice.slices.agenda import DueTimes

TOPIC, PARTITION, SECRET = "delay_topic_any", 3, b"secret"
INPUT_NAMES = sorted(INPUT)
DELIVERED_ALIASES = {"UNIQ_KEY"}

TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.integers(-1, 2**70).map(lambda number: b"%d" % number),
    st.sampled_from(
        [
            b"PT5S", b"P1W", b"P1Y", b"30s", b"1h30m", b"1800000000", b"2030-01-01T00:00:00Z",
            b"2030-13-01T00:00:00Z", b"orders",
            b"orders2", b"__x", b"cancel", b"fire", b"schedule", b"tombstone", b"a+b", b"",
        ]
    ),
)  # fmt: skip
OWN_HEADERS: st.SearchStrategy[Header] = st.tuples(
    st.text(max_size=6).map(lambda name: f"own-{name}"), st.none() | st.binary(max_size=8)
)
ANY_HEADERS: st.SearchStrategy[Header] = st.tuples(
    st.sampled_from([*INPUT_NAMES, *sorted(names.COPY_NAMES)]) | st.text(max_size=20), TEXTS
)
BYTES = st.none() | st.binary(max_size=30)
LIKELY_HEADERS: st.SearchStrategy[Headers] = st.tuples(
    st.tuples(
        st.sampled_from(["delay-at", "delay-after", "TIMER_DELIVER_MS", "scheduler-epoch"]),
        st.integers(0, 2**44).map(lambda number: b"%d" % number),
    ),
    st.tuples(
        st.sampled_from(["delay-target-topic", "scheduler-target-topic", "schedule_target_topic"]),
        st.sampled_from([b"orders", b"orders2", b"denied"]),
    ),
).flatmap(lambda pair: st.lists(OWN_HEADERS | ANY_HEADERS, max_size=2).map(lambda h: [*pair, *h]))
INT64 = st.integers(-(2**63), 2**63 - 1)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "roll_window_ms": st.integers(1, 2**52),
    "max_delay_ms": st.integers(0, 2**52),
    "clamp": st.booleans(),
    "past_due": st.sampled_from(["deliver", "dead-letter"]),
    "default_target": st.sampled_from([None, "elsewhere"]),
    "id_bytes_max": st.integers(1, 256),
}
CONTRACTS = st.builds(Contract, **PARAMETERS)
METAS: st.SearchStrategy[Meta | None] = st.none() | st.tuples(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(min_size=1, max_size=20),
    st.integers(1, 100),
    st.none() | st.integers(-(2**62), 2**53),
)
PAYLOADS: st.SearchStrategy[Payload] = st.tuples(
    st.text(max_size=10),
    st.integers(-1, 2**31 - 1),
    BYTES,
    BYTES,
    st.lists(OWN_HEADERS, max_size=4),
    st.integers(1, 2**53 - 1),
    METAS,
)


def reader(contract: Contract) -> RecordReader:
    return RecordReader(TOPIC, PARTITION, Contracts([(0, contract)]), [SECRET])


@given(
    CONTRACTS,
    INT64,
    st.integers(0, 2**52) | INT64,
    BYTES,
    BYTES,
    st.none() | st.lists(ANY_HEADERS, max_size=6) | LIKELY_HEADERS,
)
@example(Contract(), 0, 0, b"k", None, None)
def test_any_record_is_read_as_exactly_one_well_formed_entry(
    contract: Contract,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> None:
    shard = reader(contract)
    before = list(headers or [])
    entry = shard.read(offset, timestamp_ms, key, value, headers)
    assert entry == shard.read(offset, timestamp_ms, key, value, headers)
    assert entry == reader(contract).read(offset, timestamp_ms, key, value, headers)
    assert (headers or []) == before
    read_offset, kind, key_ms, identity, body, extra = entry
    assert read_offset == offset
    assert kind in (SCHEDULE, CANCEL, FIRE, INVALID)
    if kind == SCHEDULE:
        assert_well_formed(body, key_ms, identity, timestamp_ms, contract)
        assert extra is None
        assert decode_payload(encode_payload(body)) == body
        return
    assert (key_ms, extra is None) == (0, kind != INVALID)
    assert body == (key, value, before)
    assert (identity is None) == (kind == INVALID)
    if kind == INVALID:
        assert extra[0] in EXPLANATIONS
        added = dead_letter_headers(body[2], extra[0], extra[1], b"t:0:0")
        assert added[: len(before)] == before
        assert all(text is not None and text.decode() for _, text in added[len(before) :])


def assert_well_formed(
    payload: Payload, key_ms: int, identity: bytes | None, timestamp_ms: int, contract: Contract
) -> None:
    target, partition, _, _, own, due_ms, meta = payload
    assert (key_ms, 0) > START_KEY
    assert key_ms == min(due_ms, timestamp_ms + contract.roll_window_ms)
    assert due_ms < 2**53
    assert due_ms - timestamp_ms <= max(contract.max_delay_ms, 1)
    assert target
    assert not target.startswith(("delay_", "__"))
    assert partition >= -1
    assert not {name for name, _ in own} & (set(INPUT_NAMES) - DELIVERED_ALIASES)
    assert (meta[0] if meta else None) == identity
    assert meta is None or ((meta[1] is None or recurs(meta)) and meta[2] == 1)


@given(PAYLOADS)
def test_a_payload_survives_the_codec(payload: Payload) -> None:
    assert decode_payload(encode_payload(payload)) == payload


@given(PAYLOADS, st.integers(0, 2**62), st.integers(1, 2**53 - 1))
def test_a_payload_survives_a_copy(payload: Payload, base: int, at_ms: int) -> None:
    copy = copy_of(payload, base, at_ms)
    offset, kind, key_ms, identity, again, read_base = reader(Contract()).read(9, 0, *copy)
    meta = payload[6] or (None, None, 1, None)
    expected = (*payload[:6], (meta[0], b"source", meta[2], meta[3]))
    assert (offset, kind, key_ms, identity) == (9, COPY, at_ms, meta[0])
    assert (again, read_base) == (expected, base)


@given(PAYLOADS, st.data())
def test_a_copy_with_any_byte_changed_is_forged(payload: Payload, data: st.DataObject) -> None:
    key, value, headers = copy_of(payload, 5, 6)
    parts: list[bytes | None] = [key, value]
    for name, text in headers:
        parts += [name.encode(), text]
    spots = [(i, at) for i, part in enumerate(parts) for at in range(len(part or b""))]
    index, at = data.draw(st.sampled_from(spots))
    changed = bytearray(parts[index] or b"")
    changed[at] ^= data.draw(st.integers(1, 127))
    parts[index] = bytes(changed)
    forged: Headers = [
        ((name or b"").decode("utf-8", "replace"), text)
        for name, text in zip(parts[2::2], parts[3::2], strict=True)
    ]
    assert reader(Contract()).read(9, 0, parts[0], parts[1], forged)[1] != COPY


def copy_of(payload: Payload, base: int, at_ms: int) -> tuple[bytes | None, bytes | None, Headers]:
    return write_copy(
        TOPIC,
        PARTITION,
        SECRET,
        settles=1,
        source=b"source",
        base=base,
        at_ms=at_ms,
        payload=payload,
    )


# --- the heap of due times gives what a sorted list gives, and never holds much more than counts --


KEYS = st.integers(0, 5)
TIMES = st.integers(0, 20)
PUT = st.tuples(st.just("put"), KEYS, st.none() | TIMES)
TAKE = st.tuples(st.just("take"), KEYS, TIMES)


@given(st.lists(PUT | TAKE, max_size=60))
def test_it_gives_what_a_sorted_list_gives(changes: list[tuple[str, int, int | None]]) -> None:
    dues: DueTimes[int] = DueTimes()
    known: dict[int, int] = {}
    for what, key, at_ms in changes:
        if what == "put":
            dues.put(key, at_ms)
            known.pop(key, None)
            if at_ms is not None:
                known[key] = at_ms
        elif at_ms is not None:
            taken = dues.take_due(at_ms)
            expected = sorted(due_ms for due_ms in known.values() if due_ms <= at_ms)
            assert [known.pop(one) for one in taken] == expected
            assert all(due_ms > at_ms for due_ms in known.values())
        assert dues.next_ms() == min(known.values(), default=None)


@given(st.lists(st.tuples(KEYS, TIMES), max_size=500))
def test_it_holds_little_more_than_what_counts(changes: list[tuple[int, int]]) -> None:
    dues: DueTimes[int] = DueTimes()
    keys = set()
    for key, at_ms in changes:
        dues.put(key, at_ms)
        keys.add(key)
        assert len(dues._heap) <= 4 * len(keys) + 5


def test_keys_need_no_order() -> None:
    dues: DueTimes[object] = DueTimes()
    first, second = object(), object()
    dues.put(second, 5)
    dues.put(first, 5)
    assert dues.take_due(5) == [second, first]
