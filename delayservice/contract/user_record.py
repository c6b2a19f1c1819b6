"""Decodes a record that a user wrote, by one contract: collects its headers, then checks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from delayservice.contract import names
from delayservice.contract.aliases import ALIASES, KNOWN, STRIPPED
from delayservice.contract.codec import Meta, Payload
from delayservice.contract.codes import (
    CRON_INVALID,
    DELAY_TOO_LONG,
    HEADER_TOO_LARGE,
    OP_INVALID,
    TARGET_INVALID,
    TARGET_MISSING,
    TIME_AMBIGUOUS,
    TIME_INVALID,
    TIME_MISSING,
    TIME_PAST,
    ZONE_INVALID,
    RecordRefusedError,
)
from delayservice.contract.contracts import (
    MAX_DELAY_MS_MAX,
    PAST_DUE_DELIVER,
    Contract,
)
from delayservice.contract.draft import CANCEL_OP, FIRE_OP, RULES, SCHEDULE_OP, Draft, Rule
from delayservice.contract.entry import (
    CANCEL,
    FIRE,
    INVALID,
    SCHEDULE,
    Entry,
    Headers,
    Original,
    Refusal,
)
from delayservice.contract.names import Header
from delayservice.contract.provenance import Provenance
from delayservice.contract.recurrence import Recurrence, encode, numbered
from delayservice.contract.spread import spread_ms
from delayservice.contract.targets import TargetReader
from delayservice.contract.times import (
    DUE_STOP_MS,
    check_every,
    check_times,
    parse_checked_instant_ms,
    parse_count,
    parse_cron,
    parse_duration_ms,
    parse_zone,
)

PARTITION_BY_KEY: Final = -1
_PARTITION_MAX: Final = 2**31 - 1
_ID_AND_OP: Final = 2
_CONTROLS: Mapping[bytes | None, int] = {CANCEL_OP.encode(): CANCEL, FIRE_OP.encode(): FIRE}
_ANY_PAST_MS: Final = -DUE_STOP_MS
_RULES: dict[str, Rule] = {**RULES, **{alias.header: alias.rule for alias in ALIASES}}


class Origin(NamedTuple):
    """Place and times of a user's record, or of its envelope (``contract.home``): ``written_ms``,
    epoch ms, is the append time where the user wrote it, from which its delay counts. ``source`` is
    the ``delay-source`` of a record from an envelope.
    """

    offset: int
    appended_ms: int
    written_ms: int
    source: bytes | None = None


class UserRecords:
    """Decoder of the records that users wrote to one shard, by one contract. ``delay_ms_min`` is
    the shortest accepted delay, ms, negative if past due times are accepted.
    """

    def __init__(self, topic: str, contract: Contract, provenance: Provenance) -> None:
        self._topic = topic
        self._contract = contract
        self._provenance = provenance
        self.targets = TargetReader(topic)
        self.delay_ms_min = _ANY_PAST_MS if contract.past_due == PAST_DUE_DELIVER else 0

    def read(self, origin: Origin, original: Original) -> Entry:
        if len(original[2]) == _ID_AND_OP:
            control = self._plain_control(origin, original)
            if control is not None:
                return control
        known = [header for header in original[2] if header[0] in KNOWN]
        try:
            return self._read_headers(origin, original, known)
        except RecordRefusedError as exc:
            refusal: Refusal = (exc.code, exc.detail + _misspelt(original[2]))
            if origin.source is not None:
                refusal = (*refusal[:2], 0, origin.source)
            return (origin.offset, INVALID, 0, None, original, refusal)

    # A cancel or fire whose only headers are id and operation; None: something else.
    def _plain_control(self, origin: Origin, original: Original) -> Entry | None:
        headers = dict(original[2])
        record_id, kind = headers.get(names.DELAY_ID), _CONTROLS.get(headers.get(names.DELAY_OP))
        contract = self._contract
        if not record_id or kind is None or len(record_id) > contract.id_bytes_max:
            return None
        if contract.level_ms:
            return None
        return (origin.offset, kind, 0, record_id, original, origin.source)

    def _read_headers(self, origin: Origin, original: Original, known: Headers) -> Entry:
        key, value, headers = original
        draft = Draft(key, value)
        for name, text in known:
            if text is not None and len(text) > self._contract.header_bytes_max:
                self._check_size(name, len(text))
            _RULES[name](draft, name, text)
        if self._contract.level_ms:
            return self._level_record(origin, draft, headers)
        identity = self._identity(draft)
        operation = _operation(draft, identity, bare=not known)
        if operation != SCHEDULE_OP:
            identity = key if not known else identity
            return self._control(origin, operation, identity, original)
        if draft.recurs:
            return self._recurring(origin, draft, identity, headers)
        due_ms = self._due_ms(draft, origin.written_ms)
        due_ms += self._jitter_ms(draft, origin.offset)
        due_ms = self._bounded_due_ms(due_ms, origin.written_ms)
        payload = self._payload(draft, identity, due_ms, headers, origin.source)
        return (
            origin.offset,
            SCHEDULE,
            self.key_ms(origin.offset, origin.appended_ms, due_ms),
            identity,
            payload,
            None,
        )

    # A schedule with a period is due at its first occurrence, one with cron at once, so that the
    # owner computes the first.
    def _recurring(
        self, origin: Origin, draft: Draft, identity: bytes | None, headers: Headers
    ) -> Entry:
        offset, _, written_ms, source = origin
        start_ms = 0
        if draft.times:
            start_ms = self._bounded_due_ms(self._due_ms(draft, written_ms), written_ms)
        shift_ms = self._jitter_ms(draft, offset)
        recurrence = _recurrence(draft, start_ms, shift_ms)
        due_ms = max(self._written_ms(written_ms), 1)
        if recurrence.every_ms:
            due_ms = (start_ms or due_ms + recurrence.every_ms) + shift_ms
            source = numbered(source or self._provenance.source(offset, None), 1)
        due_ms = self._bounded_due_ms(due_ms, written_ms)
        payload = self._payload(draft, identity, due_ms, headers)
        expires_ms = payload[6][3] if payload[6] is not None else None
        meta = (identity, source, 1, expires_ms, encode(recurrence))
        key_ms = self.key_ms(origin.offset, origin.appended_ms, due_ms)
        return (offset, SCHEDULE, key_ms, identity, (*payload[:6], meta), None)

    def _payload(
        self,
        draft: Draft,
        identity: bytes | None,
        due_ms: int,
        headers: Headers,
        source: bytes | None = None,
    ) -> Payload:
        expires_ms = _expires_ms(draft)
        meta: Meta | None = None
        if identity is not None or expires_ms is not None:
            meta = (identity, source, 1, expires_ms)
        own = [header for header in headers if header[0] not in STRIPPED]
        target = self._target(draft)
        return (target, _partition(draft), _output_key(draft), draft.value, own, due_ms, meta)

    def _level_record(self, origin: Origin, draft: Draft, headers: Headers) -> Entry:
        if draft.ops or draft.ids or draft.key_is_id or draft.recurs:
            raise RecordRefusedError(
                OP_INVALID, f"{self._topic} is a level topic: no ids, operations or recurrence here"
            )
        names_of_times = {name for name, _, _ in draft.times} & {names.DELAY_AT, names.DELAY_AFTER}
        if names_of_times:
            raise RecordRefusedError(
                TIME_AMBIGUOUS,
                f"{' and '.join(sorted(names_of_times))} given, but all records of the level topic "
                f"{self._topic} wait {self._contract.level_ms} ms",
            )
        due_ms = self._written_ms(origin.written_ms) + self._contract.level_ms
        payload = self._payload(draft, None, due_ms, headers)
        return (origin.offset, SCHEDULE, due_ms, None, payload, None)

    def key_ms(self, offset: int, appended_ms: int, due_ms: int) -> int:
        """Return a record's key time, epoch ms: its due or roll time, whichever is earlier."""
        contract = self._contract
        window_ms = contract.roll_window_ms - spread_ms(offset, contract.roll_spread_ms)
        return min(due_ms, appended_ms + window_ms)

    def _control(
        self,
        origin: Origin,
        operation: str,
        identity: bytes | None,
        original: Original,
    ) -> Entry:
        if identity is None:
            raise RecordRefusedError(OP_INVALID, f"{operation} needs {names.DELAY_ID}")
        self._check_id(identity)
        kind = FIRE if operation == FIRE_OP else CANCEL
        return (origin.offset, kind, 0, identity, original, origin.source)

    def _identity(self, draft: Draft) -> bytes | None:
        if draft.ids:
            name, identity = _agreed(draft.ids, OP_INVALID)
            if not identity:
                raise RecordRefusedError(OP_INVALID, f"{name} is empty")
        elif draft.key_is_id:
            identity = draft.key or None
        else:
            identity = (draft.spare_id or None) if draft.rocketmq else None
        if identity is not None:
            self._check_id(identity)
        return identity

    def _check_id(self, identity: bytes) -> None:
        if len(identity) > self._contract.id_bytes_max:
            raise RecordRefusedError(
                HEADER_TOO_LARGE,
                f"the id has {len(identity)} bytes, {self._contract.id_bytes_max} are allowed",
            )

    def _check_size(self, name: str, length: int) -> None:
        if name not in names.OUTPUT:
            raise RecordRefusedError(
                HEADER_TOO_LARGE,
                f"{name} has {length} bytes, {self._contract.header_bytes_max} are allowed",
            )

    def _due_ms(self, draft: Draft, timestamp_ms: int) -> int:
        if not draft.times:
            raise RecordRefusedError(
                TIME_MISSING, f"neither {names.DELAY_AT} nor {names.DELAY_AFTER} is given"
            )
        self._written_ms(timestamp_ms)
        dues = [
            (name, min(parse(name, text, timestamp_ms), DUE_STOP_MS))
            for name, text, parse in draft.times
        ]
        first_name, due_ms = dues[0]
        for name, other_ms in dues[1:]:
            if other_ms != due_ms:
                raise RecordRefusedError(
                    TIME_AMBIGUOUS, f"{first_name} means {due_ms}, {name} means {other_ms}"
                )
        return due_ms

    # By the offset, so that every node computes the same key.
    def _jitter_ms(self, draft: Draft, offset: int) -> int:
        windows = {parse_count(name, text) for name, text in draft.windows}
        if len(windows) > 1:
            raise RecordRefusedError(TIME_AMBIGUOUS, f"two {names.DELAY_WINDOW_MS} disagree")
        if not windows:
            return 0
        return spread_ms(offset, min(windows.pop(), self._contract.max_delay_ms))

    def _written_ms(self, timestamp_ms: int) -> int:
        if not 0 <= timestamp_ms < MAX_DELAY_MS_MAX:
            raise RecordRefusedError(TIME_INVALID, f"the record's timestamp is {timestamp_ms}")
        return timestamp_ms

    def _bounded_due_ms(self, due_ms: int, timestamp_ms: int) -> int:
        delay_ms, longest_ms = due_ms - timestamp_ms, self._contract.max_delay_ms
        if delay_ms > longest_ms:
            if not self._contract.clamp:
                raise RecordRefusedError(
                    DELAY_TOO_LONG,
                    f"due {delay_ms} ms after it was written, {longest_ms} are allowed",
                )
            due_ms = timestamp_ms + longest_ms
        if delay_ms < self.delay_ms_min:
            raise RecordRefusedError(TIME_PAST, f"due {-delay_ms} ms before it was written")
        return max(due_ms, 1)

    def _target(self, draft: Draft) -> str:
        if not draft.targets:
            if self._contract.default_target is None:
                raise RecordRefusedError(TARGET_MISSING, f"{names.DELAY_TARGET_TOPIC} is not given")
            return self._contract.default_target
        name, text = _agreed(draft.targets, TARGET_INVALID)
        return self.targets.allowed.get(text) or self.targets.check(name, text)


def _misspelt(headers: Headers) -> str:
    found = [(name, meant) for name, _ in headers if (meant := names.misspelt(name))]
    return "".join(f"; {name[:64]} is not read, {meant} would be" for name, meant in found[:4])


# ``bare``: without any input header, key, value and id imply the operation.
def _operation(draft: Draft, identity: bytes | None, *, bare: bool) -> str:
    if draft.ops:
        if len(set(draft.ops)) > 1:
            raise RecordRefusedError(OP_INVALID, f"both {' and '.join(sorted(set(draft.ops)))}")
        return draft.ops[0]
    if draft.value is not None:
        return SCHEDULE_OP
    if bare:
        return CANCEL_OP if draft.key else SCHEDULE_OP
    return SCHEDULE_OP if identity is None or draft.mentions_delivery() else CANCEL_OP


def _output_key(draft: Draft) -> bytes | None:
    if draft.keys:
        return _agreed(draft.keys, TARGET_INVALID)[1]
    return None if draft.key_is_id else draft.key


def _partition(draft: Draft) -> int:
    if not draft.partitions:
        return PARTITION_BY_KEY
    name, text = _agreed(draft.partitions, TARGET_INVALID)
    digits = text is not None and text.isdigit()
    partition = parse_count(name, text) if digits else PARTITION_BY_KEY
    if not 0 <= partition <= _PARTITION_MAX:
        raise RecordRefusedError(TARGET_INVALID, f"{name} is no partition number")
    return partition


def _expires_ms(draft: Draft) -> int | None:
    if not draft.expiries:
        return None
    instants = {parse_checked_instant_ms(name, text) for name, text in draft.expiries}
    if len(instants) > 1:
        raise RecordRefusedError(TIME_AMBIGUOUS, f"two {names.DELAY_EXPIRES_AT} disagree")
    return instants.pop()


def _recurrence(draft: Draft, start_ms: int, shift_ms: int) -> Recurrence:
    left = None
    if draft.counts:
        left = check_times(parse_count(*_agreed(draft.counts, CRON_INVALID)))
    if bool(draft.every) == bool(draft.cron) or (draft.zones and draft.every):
        raise RecordRefusedError(
            CRON_INVALID,
            f"a recurring schedule has {names.DELAY_EVERY}, or {names.DELAY_CRON} with or without "
            f"{names.DELAY_TIMEZONE}",
        )
    if draft.every:
        every_ms = check_every(parse_duration_ms(*_agreed(draft.every, CRON_INVALID)))
        return Recurrence(every_ms, left=left, shift_ms=shift_ms)
    zone = parse_zone(_agreed(draft.zones, ZONE_INVALID)[1]) if draft.zones else "UTC"
    cron = parse_cron(_agreed(draft.cron, CRON_INVALID)[1])
    return Recurrence(0, cron, zone, left, number=0, start_ms=start_ms, shift_ms=shift_ms)


def _agreed(headers: Headers, code: str) -> Header:
    first = headers[0]
    for name, text in headers[1:]:
        if text != first[1]:
            raise RecordRefusedError(code, f"{first[0]} and {name} disagree")
    return first
