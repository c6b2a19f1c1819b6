"""Decodes source records into entries, by the header contract of ``docs/header-contract.md``.

``RecordReader.read`` is a pure function of the record, its place, its log-append timestamp and the
contract that applies at its offset. A plain record (a time in digits, a target seen before, perhaps
an id) takes about a microsecond there. Other records of users are left to ``UserRecords``, which
takes four to six: it collects all headers, then checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from delayservice.contract import names
from delayservice.contract.backoff import Backoff, backoff_of
from delayservice.contract.codec import Meta, Payload
from delayservice.contract.codes import (
    COPY_FORGED,
    CRON_INVALID,
    DELAY_TOO_LONG,
    HEADER_INVALID,
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
    Contracts,
)
from delayservice.contract.entry import (
    ABSENT,
    CANCEL,
    COPY,
    FIRE,
    HOMEBOUND,
    INVALID,
    OFFSET_MAX,
    SCHEDULE,
    UNREADABLE,
    Entry,
    Headers,
    Original,
    PolledRecord,
    Refusal,
)
from delayservice.contract.home import Sent, read_envelope
from delayservice.contract.input_headers import (
    CANCEL_OP,
    FIRE_OP,
    INPUT,
    KNOWN,
    OWN_INPUT,
    SCHEDULE_OP,
    Draft,
    own_headers,
)
from delayservice.contract.names import DELAY_AFTER, DELAY_AT, DELAY_ID, DELAY_TARGET_TOPIC, Header
from delayservice.contract.partitioner import partition_for
from delayservice.contract.provenance import Provenance
from delayservice.contract.recurrence import Recurrence, encode, numbered
from delayservice.contract.requeue import read_copy
from delayservice.contract.targets import TargetReader
from delayservice.contract.times import (
    DUE_STOP_MS,
    SURELY_MS,
    check_every,
    check_times,
    parse_checked_instant_ms,
    parse_count,
    parse_cron,
    parse_duration_ms,
    parse_zone,
    spread_ms,
)

PARTITION_BY_KEY: Final = -1
_PARTITION_MAX: Final = 2**31 - 1
_ID_AND_OP: Final = 2
_CONTROLS: Mapping[bytes | None, int] = {CANCEL_OP.encode(): CANCEL, FIRE_OP.encode(): FIRE}
_ANY_PAST_MS: Final = -DUE_STOP_MS


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
        if self._contract.level_ms or not record_id or kind is None:
            return None
        if len(record_id) > self._contract.id_bytes_max:
            return None
        return (origin.offset, kind, 0, record_id, original, origin.source)

    def _read_headers(self, origin: Origin, original: Original, known: Headers) -> Entry:
        key, value, headers = original
        for name, text in known:
            if text is not None and len(text) > self._contract.header_bytes_max:
                self._check_size(name, len(text))
        draft = Draft(key, value, known)
        if self._contract.level_ms:
            return self._level_record(origin, draft, headers)
        identity = self._identity(draft)
        operation = _operation(draft, identity)
        is_if_absent = draft.is_if_absent
        if is_if_absent and (operation != SCHEDULE_OP or identity is None):
            raise RecordRefusedError(
                OP_INVALID, f"{names.DELAY_IF} is for a schedule with {names.DELAY_ID}"
            )
        if operation != SCHEDULE_OP:
            identity = key if not known else identity
            return self._control(origin, operation, identity, original)
        entry = self._schedule(origin, draft, identity, headers)
        return (origin.offset, ABSENT, 0, identity, original, entry[4]) if is_if_absent else entry

    def _schedule(
        self, origin: Origin, draft: Draft, identity: bytes | None, headers: Headers
    ) -> Entry:
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
        if draft["backoffs"]:
            raise _beside_backoff("a recurrence")
        if draft["times"]:
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
        own = own_headers(headers)
        target = self._target(draft)
        backoff = _backoff(draft)
        if backoff is not None:
            own += backoff.kept(target)
        return (target, _partition(draft), _output_key(draft), draft.value, own, due_ms, meta)

    def _level_record(self, origin: Origin, draft: Draft, headers: Headers) -> Entry:
        is_of_id = draft.ids or draft.key_is_id or draft["conditions"]
        if is_of_id or draft.operations() or draft.recurs:
            raise RecordRefusedError(
                OP_INVALID, f"{self._topic} is a level topic: no ids, operations or recurrence here"
            )
        names_of_times = draft.said & {names.DELAY_AT, names.DELAY_AFTER, names.DELAY_BACKOFF}
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
        else:
            identity = draft.spare_id()
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
        backoff = _backoff(draft)
        if backoff is not None:
            if draft["times"]:
                raise _beside_backoff(draft["times"][0][0])
            return self._written_ms(timestamp_ms) + backoff.delay_ms()
        if not draft["times"]:
            raise RecordRefusedError(
                TIME_MISSING, f"neither {names.DELAY_AT} nor {names.DELAY_AFTER} is given"
            )
        self._written_ms(timestamp_ms)
        dues = [
            (name, min(parse(name, text, timestamp_ms), DUE_STOP_MS))
            for name, text in draft["times"]
            if (parse := INPUT[name].parse) is not None
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
        windows = {parse_count(name, text) for name, text in draft["windows"]}
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
        if not draft["targets"]:
            if self._contract.default_target is None:
                raise RecordRefusedError(TARGET_MISSING, f"{names.DELAY_TARGET_TOPIC} is not given")
            return self._contract.default_target
        name, text = _agreed(draft["targets"], TARGET_INVALID)
        return self.targets.allowed.get(text) or self.targets.check(name, text)


# Names that differ from input headers by case or ``_``, as ``Delay_After`` does.
def _misspelt(headers: Headers) -> str:
    meant = [(name, name.lower().replace("_", "-")) for name, _ in headers]
    found = [(name, right) for name, right in meant if right != name and right in OWN_INPUT]
    return "".join(f"; {name[:64]} is not read, {right} would be" for name, right in found[:4])


# Without a header for it, key, value and id imply the operation.
def _operation(draft: Draft, identity: bytes | None) -> str:
    operations = draft.operations()
    if len(operations) > 1:
        raise RecordRefusedError(OP_INVALID, f"both {' and '.join(sorted(operations))}")
    if operations:
        return operations.pop()
    if draft.value is not None or draft.mentions_delivery:
        return SCHEDULE_OP
    return CANCEL_OP if identity or (not draft.said and draft.key) else SCHEDULE_OP


def _output_key(draft: Draft) -> bytes | None:
    if draft["keys"]:
        return _agreed(draft["keys"], TARGET_INVALID)[1]
    return None if draft.key_is_id else draft.key


def _partition(draft: Draft) -> int:
    if not draft["partitions"]:
        return PARTITION_BY_KEY
    name, text = _agreed(draft["partitions"], TARGET_INVALID)
    digits = text is not None and text.isdigit()
    partition = parse_count(name, text) if digits else PARTITION_BY_KEY
    if not 0 <= partition <= _PARTITION_MAX:
        raise RecordRefusedError(TARGET_INVALID, f"{name} is no partition number")
    return partition


def _expires_ms(draft: Draft) -> int | None:
    if not draft["expiries"]:
        return None
    instants = {parse_checked_instant_ms(name, text) for name, text in draft["expiries"]}
    if len(instants) > 1:
        raise RecordRefusedError(TIME_AMBIGUOUS, f"two {names.DELAY_EXPIRES_AT} disagree")
    return max(instants.pop(), 0)  # a dead letter says it again as a number, which has no sign


def _backoff(draft: Draft) -> Backoff | None:
    if not draft["backoffs"]:
        return None
    _agreed(draft["backoffs"], TIME_AMBIGUOUS)
    return backoff_of([*draft["backoffs"], *draft["retries"]])


def _beside_backoff(other: str) -> RecordRefusedError:
    return RecordRefusedError(TIME_AMBIGUOUS, f"both {names.DELAY_BACKOFF} and {other} say when")


def _recurrence(draft: Draft, start_ms: int, shift_ms: int) -> Recurrence:
    left = None
    if draft["counts"]:
        left = check_times(parse_count(*_agreed(draft["counts"], CRON_INVALID)))
    if bool(draft["every"]) == bool(draft["cron"]) or (draft["zones"] and draft["every"]):
        raise RecordRefusedError(
            CRON_INVALID,
            f"a recurring schedule has {names.DELAY_EVERY}, or {names.DELAY_CRON} with or without "
            f"{names.DELAY_TIMEZONE}",
        )
    if draft["every"]:
        every_ms = check_every(parse_duration_ms(*_agreed(draft["every"], CRON_INVALID)))
        return Recurrence(every_ms, left=left, shift_ms=shift_ms)
    zone = parse_zone(_agreed(draft["zones"], ZONE_INVALID)[1]) if draft["zones"] else "UTC"
    cron = parse_cron(_agreed(draft["cron"], CRON_INVALID)[1])
    return Recurrence(0, cron, zone, left, number=0, start_ms=start_ms, shift_ms=shift_ms)


def _agreed(headers: Headers, code: str) -> Header:
    first = headers[0]
    for name, text in headers[1:]:
        if text != first[1]:
            raise RecordRefusedError(code, f"{first[0]} and {name} disagree")
    return first


PLAIN_DIGITS_MAX = 15
_TIME_AND_TARGET = 2
_TIME_TARGET_AND_ID = 3
_UNREADABLE_REFUSAL: Refusal = (
    HEADER_INVALID,
    "a header name is not UTF-8 or has a zero byte, so no header could be read",
)

_CLAIMS = names.COPY_NAMES | names.HOME_NAMES
_LONG_WAY = KNOWN | names.HOME_NAMES


class RecordReader:
    """Decoder of the source records of one shard. Not thread-safe: it caches allowed targets."""

    # Several ``secrets`` while one is replaced. Without any, all requeued records and envelopes
    # count as forged.
    def __init__(
        self, topic: str, partition: int, contracts: Contracts, secrets: Sequence[bytes]
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._secrets = tuple(secrets)
        self._provenance = Provenance(topic, partition)
        # A requeued record or an envelope was read that none of ``secrets`` signed.
        self.has_refused = False
        self.adopt(contracts)

    def adopt(self, contracts: Contracts) -> None:
        self._contracts = contracts
        self._enter(0)

    def read(
        self,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> Entry:
        """Return the entry of one source record, whose ``timestamp_ms`` is its log-append time,
        epoch ms. Never raises, whatever the record's bytes.
        """
        return self.read_batch([(offset, timestamp_ms, key, value, headers)])[0]

    # One piece, because a call for each record would make it a third slower (``bench whole``).
    def read_batch(self, rows: Iterable[PolledRecord]) -> list[Entry]:  # noqa: C901, PLR0912  # see above
        """Return the entry of each row, in order. Plain records are decoded in this loop."""
        entries: list[Entry] = []
        add = entries.append
        plain = self._plain
        for row in rows:
            offset, timestamp_ms, key, value, headers = row
            if offset < self._first or offset >= self._stop:
                self._enter(offset)
                plain = self._plain
            target_text = text = identity = None
            since_ms = 0
            own: Headers = []
            for header in headers or ():
                name = header[0]
                if name == DELAY_TARGET_TOPIC:
                    target_text = header[1]
                elif name == DELAY_AT:
                    text = header[1]
                elif name == DELAY_AFTER:
                    text, since_ms = header[1], timestamp_ms
                elif name == DELAY_ID:
                    identity = header[1]
                elif name in _LONG_WAY:
                    text = None  # not plain
                    break
                else:
                    own.append(header)
            target = plain.get(target_text)
            known = len(headers or ()) - len(own)
            is_named = (
                known == _TIME_TARGET_AND_ID and 0 < len(identity or b"") <= self._id_bytes_max
            )
            if (
                target is not None
                and text is not None
                and (known == _TIME_AND_TARGET or is_named)
                and len(text) <= PLAIN_DIGITS_MAX
                and text.isdigit()
                and 0 <= timestamp_ms < MAX_DELAY_MS_MAX
            ):
                due_ms = int(text) + since_ms or 1
                if (
                    due_ms >= SURELY_MS or since_ms
                ) and self._delay_ms_min <= due_ms - timestamp_ms <= self._delay_ms_max:
                    if identity is not None and self._id_partitions:
                        home = self._home(identity)
                        if home != self._partition:
                            sent = (SCHEDULE, timestamp_ms, home)
                            add((offset, HOMEBOUND, 0, identity, (key, value, headers), sent))
                            continue
                    key_ms = due_ms
                    if due_ms - timestamp_ms > self._plain_window_ms:
                        key_ms = self._user_records.key_ms(offset, timestamp_ms, due_ms)
                    meta = None if identity is None else (identity, None, 1, None)
                    payload = (target, PARTITION_BY_KEY, key, value, own, due_ms, meta)
                    add((offset, SCHEDULE, key_ms, identity, payload, None))
                    continue
            add(self._read_any(row))
        return entries

    def _read_any(self, row: PolledRecord) -> Entry:
        offset, timestamp_ms, key, value, headers = row
        if headers is UNREADABLE:
            return (offset, INVALID, 0, None, (key, value, []), _UNREADABLE_REFUSAL)
        original = (key, value, headers or [])
        claimed = {name for name, _ in original[2]} & _CLAIMS
        try:
            if claimed & names.COPY_NAMES:
                return self._read_copy(offset, original)
            sent = self._come_home(original) if claimed else None
        except RecordRefusedError as exc:
            return (offset, INVALID, 0, None, original, (exc.code, exc.detail))
        if sent is not None:
            return self.read_arrived(offset, timestamp_ms, sent)
        entry = self._user_records.read(Origin(offset, timestamp_ms, timestamp_ms), original)
        _, kind, _, identity, _, _ = entry
        home = self._partition if identity is None else self._home(identity)
        if identity is None or home == self._partition:
            return entry
        return (offset, HOMEBOUND, 0, identity, original, (kind, timestamp_ms, home))

    def read_arrived(self, offset: int, timestamp_ms: int, sent: Sent) -> Entry:
        """Return the entry of a record from an envelope with a right signature. ``offset`` and
        ``timestamp_ms`` (epoch ms) are the envelope's.
        """
        if offset < self._first or offset >= self._stop:
            self._enter(offset)
        origin = Origin(offset, timestamp_ms, sent.written_ms, sent.source)
        return self._user_records.read(origin, sent.original)

    def _home(self, identity: bytes) -> int:
        count = self._id_partitions
        return partition_for(identity, count) if count else self._partition

    def _come_home(self, original: Original) -> Sent:
        sent = read_envelope(self._topic, self._partition, self._secrets, original)
        if sent is None:
            raise self._forged(names.DELAY_HOME, names.DELAY_HOME_MAC)
        return sent

    def _forged(self, name: str, mac_name: str) -> RecordRefusedError:
        self.has_refused = True
        place = f"{self._topic}:{self._partition}"
        detail = f"{name} or {mac_name} is not what this service wrote to {place}"
        return RecordRefusedError(COPY_FORGED, detail)

    def _enter(self, offset: int) -> None:
        contract = self._contract = self._contracts.at(offset)
        self._first, stop = self._contracts.span(offset)
        self._stop = OFFSET_MAX if stop is None else stop
        user_records = self._user_records = UserRecords(self._topic, contract, self._provenance)
        # No record of a level topic is plain: the topic decides the delay.
        self._plain: Mapping[bytes | None, str] = (
            {} if contract.level_ms else user_records.targets.allowed
        )
        self._plain_window_ms = contract.roll_window_ms - contract.roll_spread_ms
        self._id_bytes_max = contract.id_bytes_max
        self._id_partitions = contract.id_partitions
        self._delay_ms_max = contract.max_delay_ms
        self._delay_ms_min = user_records.delay_ms_min

    def _read_copy(self, offset: int, original: Original) -> Entry:
        copy = read_copy(self._topic, self._partition, self._secrets, original)
        if copy is None:
            raise self._forged(names.DELAY_COPY, names.DELAY_COPY_MAC)
        base, at_ms, payload = copy
        meta = payload[6]
        return (offset, COPY, at_ms, meta[0] if meta else None, payload, base)
