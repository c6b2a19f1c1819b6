"""One source record in, one entry out: the header contract of ``docs/header-contract.md``.

``read`` is a pure function of the record, its place, its log-append timestamp and the contract that
holds at its offset. A plain record (a time in digits, a target seen before, perhaps an id) takes
the short way of about a microsecond; anything else is filed in a ``Draft`` by one rule per header,
and judged, in four to six.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from delayservice.contract import names
from delayservice.contract.aliases import ALIASES, KNOWN, STRIPPED
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
    HOMES_VERSION,
    MAX_DELAY_MS_MAX,
    PAST_DUE_DELIVER,
    UNITS_VERSION,
    Contracts,
)
from delayservice.contract.draft import CANCEL_OP, FIRE_OP, RULES, SCHEDULE_OP, Draft, Rule
from delayservice.contract.entry import (
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
    Refusal,
    Row,
)
from delayservice.contract.home import Sent, read_envelope
from delayservice.contract.names import (
    DELAY_AFTER,
    DELAY_AT,
    DELAY_ID,
    DELAY_OP,
    DELAY_TARGET_TOPIC,
    Header,
)
from delayservice.contract.partitioner import partition_for
from delayservice.contract.provenance import Provenance, dead_letter_headers, provenance
from delayservice.contract.recurrence import Recurrence, encode, numbered
from delayservice.contract.recurring import check_every, check_times, parse_cron, parse_zone
from delayservice.contract.requeue import read_copy
from delayservice.contract.spread import spread_ms
from delayservice.contract.targets import Targets
from delayservice.contract.times import DUE_STOP_MS, FIRST_READINGS, UNIT_READINGS, parse_count

__all__ = [
    "CANCEL",
    "COPY",
    "INVALID",
    "SCHEDULE",
    "Entry",
    "Provenance",
    "RecordReader",
    "Row",
    "dead_letter_headers",
    "provenance",
]

PARTITION_BY_KEY = -1

_PARTITION_MAX = 2**31 - 1
FIRE_SINCE = _WINDOW_SINCE = _RECURRING_SINCE = 2
"""Versions of the contract."""
PLAIN_DIGITS_MAX = 15
_TIME_AND_TARGET = 2
_TIME_TARGET_AND_ID = 3
_ID_AND_OP = 2
_CONTROLS: Mapping[bytes | None, int] = {CANCEL_OP.encode(): CANCEL, FIRE_OP.encode(): FIRE}
_NOT_PLAIN = 1_000
"""More headers than any plain record has: one that only the long way understands."""
_ANY_PAST_MS = -DUE_STOP_MS
_UNREADABLE_REFUSAL: Refusal = (
    HEADER_INVALID,
    "a header name is not UTF-8, so no header could be read",
)

_RULES: dict[str, Rule] = {**RULES, **{alias.header: alias.rule for alias in ALIASES}}
_CLAIMS = names.COPY_NAMES | names.HOME_NAMES
_LONG_WAY = KNOWN | names.HOME_NAMES


class _Origin(NamedTuple):
    """Where a record is, and since when.

    Attributes:
        offset: its own.
        appended_ms: its log-append time, epoch milliseconds.
        written_ms: its first one, from which its delay counts: another one if it has come home.
        source: ``delay-source`` of one that has come home; else None.
    """

    offset: int
    appended_ms: int
    written_ms: int
    source: bytes | None = None


class RecordReader:
    """Reads the records of one shard. Not thread-safe: it remembers targets it found good."""

    def __init__(
        self, topic: str, partition: int, contracts: Contracts, secrets: Sequence[bytes]
    ) -> None:
        """Read records of ``topic`` and ``partition``.

        Args:
            topic: the delay topic.
            partition: its partition.
            contracts: what holds from which offset on; see ``adopt``.
            secrets: keys that copies may be signed with (several while one is replaced); none:
                every copy counts as forged.
        """
        self._topic = topic
        self._partition = partition
        self._secrets = tuple(secrets)
        self._provenance = Provenance(topic, partition)
        self.has_refused = False
        """Whether a copy was read that none of ``secrets`` signed."""
        self.adopt(contracts)

    def adopt(self, contracts: Contracts) -> None:
        """Go on with these contracts, after the checkpoint's list was extended."""
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
        """Return what one record is. Never raises, whatever its bytes.

        Args:
            offset: its source offset.
            timestamp_ms: its log-append time, epoch milliseconds.
            key: its key.
            value: its value.
            headers: its headers in order, None when there are none, or ``UNREADABLE``.
        """
        return self.read_batch([(offset, timestamp_ms, key, value, headers)])[0]

    def read_batch(self, rows: Iterable[Row]) -> list[Entry]:  # noqa: C901, PLR0912  # see below
        """``read`` each row. The loop is the short way: a time in digits, a target seen before,
        perhaps an id and own headers, no name twice and no value missing.

        It stands in one piece because every record goes through it: a call for each would make it
        a third slower (``bench whole``).
        """
        entries: list[Entry] = []
        add = entries.append
        plain = self._plain
        for row in rows:
            offset, timestamp_ms, key, value, headers = row
            if offset < self._first or offset >= self._stop:
                self._enter(offset)
                plain = self._plain
            target_text = text = identity = None
            since_ms = known = 0
            own: Headers = []
            for header in headers or ():
                name = header[0]
                if name == DELAY_TARGET_TOPIC:
                    target_text = header[1]
                    known += 1
                elif name == DELAY_AT:
                    text = header[1]
                    known += 1
                elif name == DELAY_AFTER:
                    text = header[1]
                    since_ms = timestamp_ms
                    known += 1
                elif name == DELAY_ID:
                    identity = header[1]
                    known += 1
                elif name in _LONG_WAY:
                    known = _NOT_PLAIN
                else:
                    own.append(header)
            target = plain.get(target_text)
            if (
                target is not None
                and text is not None
                and (
                    known == _TIME_AND_TARGET
                    or (
                        known == _TIME_TARGET_AND_ID
                        and identity
                        and len(identity) <= self._id_bytes_max
                    )
                )
                and len(text) <= PLAIN_DIGITS_MAX
                and text.isdigit()
                and 0 <= timestamp_ms < MAX_DELAY_MS_MAX
            ):
                due_ms = int(text) + since_ms or 1
                if (
                    due_ms >= self._surely_ms or since_ms
                ) and self._delay_ms_min <= due_ms - timestamp_ms <= self._delay_ms_max:
                    if identity is not None and self._id_partitions:
                        home = self._home(identity)
                        if home != self._partition:
                            foreign = (SCHEDULE, timestamp_ms, home)
                            add((offset, HOMEBOUND, 0, identity, (key, value, headers), foreign))
                            continue
                    key_ms = due_ms
                    if due_ms - timestamp_ms > self._plain_window_ms:
                        origin = _Origin(offset, timestamp_ms, timestamp_ms)
                        key_ms = self._key_ms(origin, due_ms)
                    meta = None if identity is None else (identity, None, 1, None)
                    payload = (target, PARTITION_BY_KEY, key, value, own, due_ms, meta)
                    add((offset, SCHEDULE, key_ms, identity, payload, None))
                    continue
            add(self._read_any(row))
        return entries

    def _read_any(self, row: Row) -> Entry:
        """The long way of ``read``."""
        offset, timestamp_ms, key, value, headers = row
        if headers is UNREADABLE:
            return (offset, INVALID, 0, None, (key, value, []), _UNREADABLE_REFUSAL)
        original = (key, value, headers or [])
        claimed = {name for name, _ in original[2]} & _CLAIMS
        try:
            if claimed & names.COPY_NAMES:
                return self._judge_copy(offset, original)
            sent = self._come_home(original) if claimed else None
        except RecordRefusedError as exc:
            return (offset, INVALID, 0, None, original, (exc.code, exc.detail))
        if sent is not None:
            return self.read_arrived(offset, timestamp_ms, sent)
        entry = self._judge_user(_Origin(offset, timestamp_ms, timestamp_ms), original)
        _, kind, _, identity, _, _ = entry
        home = self._partition if identity is None else self._home(identity)
        if identity is None or home == self._partition:
            return entry
        return (offset, HOMEBOUND, 0, identity, original, (kind, timestamp_ms, home))

    def read_arrived(self, offset: int, timestamp_ms: int, sent: Sent) -> Entry:
        """Read a record that has come home, as ``read`` does, from what its envelope holds. Whether
        to believe the envelope is for the caller to say.
        """
        if offset < self._first or offset >= self._stop:
            self._enter(offset)
        origin = _Origin(offset, timestamp_ms, sent.written_ms, sent.source)
        return self._judge_user(origin, sent.original)

    def _home(self, identity: bytes) -> int:
        """The partition where an id is at home; this one, where the contract has no homes."""
        count = self._id_partitions
        return partition_for(identity, count) if count else self._partition

    def _come_home(self, original: Original) -> Sent | None:
        """Read what an envelope holds. It is known by its signature, whatever the contract says,
        for ids may find home from elsewhere before they do from here. None: by this contract it is
        none.
        """
        sent = read_envelope(self._topic, self._partition, self._secrets, original)
        if sent is None and self._contract.version >= HOMES_VERSION:
            raise self._forged(names.DELAY_HOME, names.DELAY_HOME_MAC)
        return sent

    def _forged(self, name: str, mac_name: str) -> RecordRefusedError:
        self.has_refused = True
        place = f"{self._topic}:{self._partition}"
        detail = f"{name} or {mac_name} is not what this service wrote to {place}"
        return RecordRefusedError(COPY_FORGED, detail)

    def _judge_user(self, origin: _Origin, original: Original) -> Entry:
        """Read a record that a user wrote, here or elsewhere."""
        if len(original[2]) == _ID_AND_OP:
            control = self._plain_control(origin, original)
            if control is not None:
                return control
        known = [header for header in original[2] if header[0] in KNOWN]
        try:
            return self._judge(origin, original, known)
        except RecordRefusedError as exc:
            refusal: Refusal = (exc.code, exc.detail + _misspelt(original[2]))
            if origin.source is not None:
                refusal = (*refusal[:2], 0, origin.source)
            return (origin.offset, INVALID, 0, None, original, refusal)

    def _plain_control(self, origin: _Origin, original: Original) -> Entry | None:
        """A cancel or fire of which the headers say nothing else, as nearly all are; None: it takes
        the long way.
        """
        headers = dict(original[2])
        record_id, kind = headers.get(DELAY_ID), _CONTROLS.get(headers.get(DELAY_OP))
        contract = self._contract
        if not record_id or kind is None or len(record_id) > contract.id_bytes_max:
            return None
        if contract.level_ms or contract.version < FIRE_SINCE:
            return None
        return (origin.offset, kind, 0, record_id, original, origin.source)

    def _enter(self, offset: int) -> None:
        """Make the contract at ``offset`` the current one."""
        contract = self._contract = self._contracts.at(offset)
        self._first, stop = self._contracts.span(offset)
        self._stop = OFFSET_MAX if stop is None else stop
        self._targets = Targets(contract, self._topic)
        self._allowed = self._targets.allowed
        # Nothing on a level topic is plain: the topic says when.
        self._plain: Mapping[bytes | None, str] = {} if contract.level_ms else self._allowed
        self._plain_window_ms = contract.roll_window_ms - contract.roll_spread_ms
        self._id_bytes_max = contract.id_bytes_max
        self._id_partitions = contract.id_partitions
        has_units = contract.version >= UNITS_VERSION
        self._readings = UNIT_READINGS if has_units else FIRST_READINGS
        self._surely_ms = self._readings.surely_ms
        self._delay_ms_max = contract.max_delay_ms
        self._delay_ms_min = _ANY_PAST_MS if contract.past_due == PAST_DUE_DELIVER else 0

    def _judge(self, origin: _Origin, original: Original, known: Headers) -> Entry:
        """The long way of ``read``.

        Raises:
            RecordRefusedError: the record breaks the contract.
        """
        key, value, headers = original
        draft = Draft(key, value, self._readings)
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
        return (origin.offset, SCHEDULE, self._key_ms(origin, due_ms), identity, payload, None)

    def _recurring(
        self, origin: _Origin, draft: Draft, identity: bytes | None, headers: Headers
    ) -> Entry:
        """A schedule by period begins with its first occurrence; one by cron is due at once, for
        the owner to write its first occurrence into a copy (see ``recurrence``).
        """
        if self._contract.version < _RECURRING_SINCE:
            raise RecordRefusedError(CRON_INVALID, "recurring schedules were not served yet")
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
        key_ms = self._key_ms(origin, due_ms)
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

    def _level_record(self, origin: _Origin, draft: Draft, headers: Headers) -> Entry:
        """On a level topic the topic says when, and nothing can be picked out again."""
        if draft.ops or draft.ids or draft.key_is_id or draft.recurs:
            raise RecordRefusedError(
                OP_INVALID, f"{self._topic} is a level topic: no ids, operations or recurrence here"
            )
        names_of_times = {name for name, _, _ in draft.times} & {DELAY_AT, DELAY_AFTER}
        if names_of_times and self._contract.version >= UNITS_VERSION:
            raise RecordRefusedError(
                TIME_AMBIGUOUS,
                f"{' and '.join(sorted(names_of_times))} given, but all records of the level topic "
                f"{self._topic} wait {self._contract.level_ms} ms",
            )
        due_ms = self._written_ms(origin.written_ms) + self._contract.level_ms
        payload = self._payload(draft, None, due_ms, headers)
        return (origin.offset, SCHEDULE, due_ms, None, payload, None)

    def _key_ms(self, origin: _Origin, due_ms: int) -> int:
        """Return when the record is to be settled: when it is due, or rolled before (rule 2)."""
        contract = self._contract
        window_ms = contract.roll_window_ms - spread_ms(origin.offset, contract.roll_spread_ms)
        return min(due_ms, origin.appended_ms + window_ms)

    def _judge_copy(self, offset: int, original: Original) -> Entry:
        copy = read_copy(self._topic, self._partition, self._secrets, original)
        if copy is None:
            raise self._forged(names.DELAY_COPY, names.DELAY_COPY_MAC)
        base, at_ms, payload = copy
        meta = payload[6]
        return (offset, COPY, at_ms, meta[0] if meta else None, payload, base)

    def _control(
        self,
        origin: _Origin,
        operation: str,
        identity: bytes | None,
        original: Original,
    ) -> Entry:
        if operation == FIRE_OP and self._contract.version < FIRE_SINCE:
            raise RecordRefusedError(OP_INVALID, f"{operation} was not served yet")
        if identity is None:
            raise RecordRefusedError(OP_INVALID, f"{operation} needs {DELAY_ID}")
        self._check_id(identity)
        kind = FIRE if operation == FIRE_OP else CANCEL
        return (origin.offset, kind, 0, identity, original, origin.source)

    def _identity(self, draft: Draft) -> bytes | None:
        """The record's id, from our own header or another system's."""
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
        """The one due time that all time headers agree on."""
        if not draft.times:
            raise RecordRefusedError(TIME_MISSING, f"neither {DELAY_AT} nor {DELAY_AFTER} is given")
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

    def _jitter_ms(self, draft: Draft, offset: int) -> int:
        """Return how much later within its window the record is due: by its offset, so that many
        with one due time are spread evenly.
        """
        windows = {parse_count(name, text) for name, text in draft.windows}
        if len(windows) > 1:
            raise RecordRefusedError(TIME_AMBIGUOUS, f"two {names.DELAY_WINDOW_MS} disagree")
        if not windows or self._contract.version < _WINDOW_SINCE:
            return 0
        return spread_ms(offset, min(windows.pop(), self._contract.max_delay_ms))

    def _written_ms(self, timestamp_ms: int) -> int:
        if not 0 <= timestamp_ms < MAX_DELAY_MS_MAX:
            raise RecordRefusedError(TIME_INVALID, f"the record's timestamp is {timestamp_ms}")
        return timestamp_ms

    def _bounded_due_ms(self, due_ms: int, timestamp_ms: int) -> int:
        delay_ms = due_ms - timestamp_ms
        if delay_ms > self._delay_ms_max:
            if not self._contract.clamp:
                raise RecordRefusedError(
                    DELAY_TOO_LONG,
                    f"due {delay_ms} ms after it was written, {self._delay_ms_max} are allowed",
                )
            due_ms = timestamp_ms + self._delay_ms_max
        if delay_ms < self._delay_ms_min:
            raise RecordRefusedError(TIME_PAST, f"due {-delay_ms} ms before it was written")
        return max(due_ms, 1)

    def _target(self, draft: Draft) -> str:
        if not draft.targets:
            if self._contract.default_target is None:
                raise RecordRefusedError(TARGET_MISSING, f"{DELAY_TARGET_TOPIC} is not given")
            return self._contract.default_target
        name, text = _agreed(draft.targets, TARGET_INVALID)
        return self._allowed.get(text) or self._targets.check(name, text)


def _misspelt(headers: Headers) -> str:
    """Name the headers that were not read although they are nearly right: the likely cause."""
    found = [(name, meant) for name, _ in headers if (meant := names.misspelt(name))]
    return "".join(f"; {name[:64]} is not read, {meant} would be" for name, meant in found[:4])


def _operation(draft: Draft, identity: bytes | None, *, bare: bool) -> str:
    """The one operation that the headers name, or that a null value implies."""
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
    """``delay-expires-at``, epoch milliseconds."""
    if not draft.expiries:
        return None
    instants = {draft.readings.instant_ms(name, text) for name, text in draft.expiries}
    if len(instants) > 1:
        raise RecordRefusedError(TIME_AMBIGUOUS, f"two {names.DELAY_EXPIRES_AT} disagree")
    return instants.pop()


def _recurrence(draft: Draft, start_ms: int, shift_ms: int) -> Recurrence:
    """Read the headers of a recurring schedule; ``start_ms`` is 0 where they name no start."""
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
        every_ms = check_every(draft.readings.duration_ms(*_agreed(draft.every, CRON_INVALID)))
        return Recurrence(every_ms, left=left, shift_ms=shift_ms)
    zone = parse_zone(_agreed(draft.zones, ZONE_INVALID)[1]) if draft.zones else "UTC"
    cron = parse_cron(_agreed(draft.cron, CRON_INVALID)[1])
    return Recurrence(0, cron, zone, left, number=0, start_ms=start_ms, shift_ms=shift_ms)


def _agreed(headers: Headers, code: str) -> Header:
    """The first of several headers that all say the same.

    Raises:
        RecordRefusedError: ``code``, they don't.
    """
    first = headers[0]
    for name, text in headers[1:]:
        if text != first[1]:
            raise RecordRefusedError(code, f"{first[0]} and {name} disagree")
    return first
