"""Decodes source records into entries, by the header contract of ``docs/header-contract.md``.

``read`` is a pure function of the record, its place, its log-append timestamp and the contract that
applies at its offset. A plain record (a time in digits, a target seen before, perhaps an id) takes
about a microsecond here. Other records of users are left to ``user_record``, which takes four to
six.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from delayservice.contract import names
from delayservice.contract.aliases import KNOWN
from delayservice.contract.codes import COPY_FORGED, HEADER_INVALID, RecordRefusedError
from delayservice.contract.contracts import MAX_DELAY_MS_MAX, Contracts
from delayservice.contract.entry import (
    COPY,
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
from delayservice.contract.names import DELAY_AFTER, DELAY_AT, DELAY_ID, DELAY_TARGET_TOPIC
from delayservice.contract.partitioner import partition_for
from delayservice.contract.provenance import Provenance
from delayservice.contract.requeue import read_copy
from delayservice.contract.times import SURELY_MS
from delayservice.contract.user_record import PARTITION_BY_KEY, Origin, UserRecords

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
    def read_batch(self, rows: Iterable[Row]) -> list[Entry]:  # noqa: C901, PLR0912  # see above
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

    def _read_any(self, row: Row) -> Entry:
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
