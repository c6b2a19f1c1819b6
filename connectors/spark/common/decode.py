"""Decodes records from Arrow batches on the executors, with one Python object per value, without
pandas.

Batches have the columns of ``topics.ROW_SCHEMA``. Lists of headers are read from their flat child
arrays and cut at the list's offsets.
"""

from __future__ import annotations

import gc
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.spark.common.frames import header_lists
from connectors.spark.common.topics import Place
from delayservice.base.errors import StoreError
from delayservice.contract.codec import Payload
from delayservice.contract.codes import COPY_FORGED
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import (
    CANCEL,
    COPY,
    FIRE,
    INVALID,
    OFFSET_MAX,
    UNREADABLE,
    Entry,
    Headers,
    PolledRecord,
    scheduled,
)
from delayservice.contract.home import Arrived, Group, read_claimed_envelope
from delayservice.contract.home import waiting_group as group_of
from delayservice.contract.names import DELAY_HOME_MAC, is_legal_topic
from delayservice.contract.partitioner import murmur2
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import recurrence_of
from delayservice.contract.requeue import Claim, read_claim

NO_KEY: Final = -1
"""Value in place of the hash of a key, for a record whose key is missing or empty: any partition is
right for it."""

_SHARD: Final = re.compile(r".+:\d{1,9}", re.ASCII)
_SOURCE: Final = re.compile(rb".+:\d{1,9}:\d{1,18}")
_PARTITION_MAX: Final = 2**31 - 1
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MASK31: Final = 0x7FFFFFFF
_signed_long: Final = struct.Struct("<q").pack


class HashedValue(bytes):
    """Hash of a value (8 bytes, ``ledger.rows.value_hash``), where only the hash was kept."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the collector of reference cycles within the block: it would examine the many tuples
    of a batch again and again, which doubles the time; no cycles arise here.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def runs(batch: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yield runs of rows from one partition; usually one, as a task reads one partition."""
    topics = batch.column("topic").dictionary_encode()
    place = topics.indices.to_numpy().astype(np.int64) << 32
    place |= batch.column("partition").to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), batch.num_rows]
    names = topics.dictionary.to_pylist()
    for start, stop in pairwise(bounds):
        if start < stop:
            at = int(place[start])
            yield (names[at >> 32], at & 0xFFFFFFFF), batch.slice(start, stop - start)


def rows_of(batch: pa.RecordBatch) -> list[PolledRecord]:
    """Return each record of a batch as ``(offset, timestamp in epoch ms, key, value, headers)``."""
    return list(
        zip(
            batch.column("offset").to_pylist(),
            batch.column("timestamp_ms").to_pylist(),
            batch.column("key").to_pylist(),
            values_of(batch),
            headers_of(batch),
            strict=True,
        )
    )


def values_of(batch: pa.RecordBatch) -> list[bytes | None]:
    values: list[bytes | None] = batch.column("value").to_pylist()
    if "value_hash" not in batch.schema.names:
        return values
    hashes = batch.column("value_hash").to_pylist()
    return [
        value if value is not None or hashed is None else HashedValue(_signed_long(hashed))
        for value, hashed in zip(values, hashes, strict=True)
    ]


def headers_of(batch: pa.RecordBatch) -> list[Headers]:
    """Return the headers of each record; ``UNREADABLE`` where a name is not UTF-8 (Java shows
    replacement characters) or has a zero byte: the service's client can't read it.
    """
    flat, found = header_lists(batch.column("headers"))
    names = pc.unique(flat.field("key")).to_pylist()
    if not any(map(_is_odd, names)):
        return found
    return [UNREADABLE if any(_is_odd(n) for n, _ in headers) else headers for headers in found]


def _is_odd(name: str) -> bool:
    return "\0" in name or _REPLACEMENT in name


class ShardReader:
    """Decoder of the records of one shard, which reads them as the service does.

    Requeued records and envelopes that none of the secrets has signed count as genuine, as secrets
    may have been replaced. The dead letters show which of them the service refused as forged.
    """

    def __init__(
        self, topic: str, partition: int, contracts: Contracts, secrets: Sequence[bytes]
    ) -> None:
        self._topic = topic
        self._reader = RecordReader(topic, partition, contracts, secrets)

    def read(self, rows: Sequence[PolledRecord]) -> list[tuple[Entry, bool]]:
        """Return the entry of each record, with False if its signature could not be verified."""
        entries = self._reader.read_batch(rows)
        return [
            self._believed(row, e) if e[1] == INVALID or _is_enveloped(row) else (e, True)
            for row, e in zip(rows, entries, strict=True)
        ]

    def _believed(self, row: PolledRecord, entry: Entry) -> tuple[Entry, bool]:
        # A record refused as forged counts as genuine if a service can have written it.
        arrived = envelope_of(row)
        if arrived is not None:
            if not _came_from(entry, arrived.sent.source):
                return self._reader.read_arrived(row[0], row[1], arrived.sent), False
            return entry, True
        offset, kind, _, _, _, refusal = entry
        is_refused = kind == INVALID and refusal[0] == COPY_FORGED
        claim = claim_of(row) if is_refused else None
        if claim is None or (claim.payload[0] == self._topic and waiting(claim.payload) is None):
            return entry, True
        meta = claim.payload[6]
        identity = meta[0] if meta else None
        return (offset, COPY, claim.at_ms, identity, claim.payload, claim.base), False


def claim_of(row: PolledRecord) -> Claim | None:
    """Return what a requeued record states, without a check of its signature; None for others."""
    claim = read_claim((row[2], row[3], row[4] or []))
    if claim is None:
        return None
    target, partition, _, _, _, due_ms, meta = claim.payload
    _, source, attempt, expires_ms, *more = meta or (None, None, 1, None)
    numbers = (claim.settles, claim.base, due_ms, attempt, expires_ms or 0, *more[1:])
    if any(not isinstance(one, int) or abs(one) > OFFSET_MAX for one in numbers):
        return None
    if not -1 <= partition <= _PARTITION_MAX or not is_legal_topic(target):
        return None
    if claim.shard is not None and not _SHARD.fullmatch(claim.shard):
        return None
    try:
        (source or b"").decode("ascii")
        recurrence_of(meta)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
    return claim


def envelope_of(row: PolledRecord) -> Arrived | None:
    """Return what an envelope states, without a check of its signature; None for other records."""
    if not _is_enveloped(row):
        return None
    arrived = read_claimed_envelope((row[2], row[3], row[4] or []))
    if arrived is None:
        return None
    is_sensible = _SHARD.fullmatch(arrived.shard) and _are_sensible((arrived.sent,))
    return arrived if is_sensible and arrived.settles <= OFFSET_MAX else None


def waiting(payload: Payload) -> Group | None:
    """Return the records that wait together in a requeued record to be sent to their home."""
    try:
        group = group_of(payload)
    except StoreError:
        return None
    return group if _are_sensible(group) else None


def _is_enveloped(row: PolledRecord) -> bool:
    return (row[4] or UNREADABLE)[-1][0] == DELAY_HOME_MAC


def _are_sensible(group: Group) -> bool:
    return all(abs(o.written_ms) <= OFFSET_MAX and _SOURCE.fullmatch(o.source) for o in group)


def _came_from(entry: Entry, source: bytes) -> bool:
    # The reader takes a record out of an envelope only if the signature is valid.
    payload, kind, extra = scheduled(entry), entry[1], entry[5]
    if payload is not None:
        meta = payload[6]
        return meta is not None and (meta[1] or b"").partition(b"#")[0] == source
    return source in extra if kind == INVALID else kind in (CANCEL, FIRE) and extra == source


def key_hash(key: bytes | None) -> int:
    """Return the 31 bits of murmur2 that choose the partition; ``NO_KEY`` without a key."""
    return murmur2(key) & _MASK31 if key else NO_KEY
