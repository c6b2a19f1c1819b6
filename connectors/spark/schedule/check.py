"""Checks records with the service's own reader before they are written to a delay topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from connectors.spark.common.sink import records_of
from delayservice.contract.codes import (
    CRON_INVALID,
    OP_INVALID,
    TARGET_DENIED,
    TARGET_UNKNOWN,
    TOO_LARGE,
    RecordRefusedError,
)
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.cron import cron_time
from delayservice.contract.entry import INVALID, Entry, PolledRecord, Refusal, scheduled
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import first_ms, recurrence_of
from delayservice.contract.targets import Allowlist

Check: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# Upper bound for the bytes that Kafka adds to a single record besides its key, value and headers.
RECORD_EXTRA_BYTES: Final = 128

JUDGED: Final = (
    "file string, id binary, value binary, headers array<struct<key: string, value: binary>>, "
    "row string, code string, reason string"
)
"""Columns of ``mapping.drafts``, with the error code and reason of each rejected row."""

# Code of a row that can't be read. No dead letter has it, as the row is never written.
ROW_UNREADABLE: Final = "row-unreadable"

_HEADER_EXTRA_BYTES: Final = 10
_BEYOND_ALL_OFFSETS: Final = 0


@dataclass(frozen=True, slots=True)
class RowRules:
    """Contracts and limits by which rows are checked.

    While nodes change the settings there are several ``contracts``, and a record must be valid
    under each. ``now_ms`` is the time at which the record is assumed to be appended, ``allowlist``
    that of the nodes' settings; None: unknown.
    """

    topic: str
    contracts: tuple[Contract, ...]
    now_ms: int
    partitions: Mapping[str, int]
    record_bytes_max: int
    allowlist: Allowlist | None = None


def check(rules: RowRules) -> Check:
    """Return a function for ``DataFrame.mapInArrow``, from the columns of ``mapping.drafts`` to
    ``JUDGED``: ``code`` and ``reason`` are null for valid rows, whose ``row`` is dropped.
    """

    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judge = ScheduleCheck(rules)
        for batch in batches:
            *same, row, unreadable = batch.columns
            refusals = [
                judge.refusal((_BEYOND_ALL_OFFSETS, rules.now_ms, *record))
                if why is None
                else (ROW_UNREADABLE, why)
                for record, why in zip(records_of(batch), unreadable.to_pylist(), strict=True)
            ]
            codes = pa.array([refusal and refusal[0] for refusal in refusals], pa.string())
            reasons = pa.array([refusal and refusal[1] for refusal in refusals], pa.string())
            rows = pc.if_else(codes.is_valid(), row, None)
            names = [*batch.schema.names[:-1], "code", "reason"]
            yield pa.RecordBatch.from_arrays([*same, rows, codes, reasons], names)

    return judged


class ScheduleCheck:
    def __init__(self, rules: RowRules) -> None:
        self._rules = rules
        self._readers = [
            RecordReader(rules.topic, 0, Contracts([(0, replace(contract, id_partitions=0))]), ())
            for contract in rules.contracts  # whatever partition the record will lie in
        ]

    def refusal(self, row: PolledRecord) -> Refusal | None:
        """Return error code and reason if the service would not deliver a record."""
        size = _size(row)
        if size > self._rules.record_bytes_max:
            return TOO_LARGE, (
                f"the record has about {size} bytes, {self._rules.topic} takes "
                f"{self._rules.record_bytes_max}"
            )
        found = (self._refusal_of(reader.read(*row)) for reader in self._readers)
        try:
            return next((one for one in found if one is not None), None)
        except RecordRefusedError as exc:
            return exc.code, exc.detail

    def _refusal_of(self, entry: Entry) -> Refusal | None:
        if entry[1] == INVALID:
            code, detail = entry[5][:2]
            return code, detail
        payload = scheduled(entry)
        if payload is None:
            return OP_INVALID, "the record would not schedule anything"
        recurrence = recurrence_of(payload[6])  # the reader leaves cron and zone to the owner
        if recurrence and recurrence.cron and first_ms(recurrence, payload[5], cron_time) is None:
            raise RecordRefusedError(CRON_INVALID, f"{recurrence.cron!r} has no occurrence")
        target, partition = payload[0], payload[1]
        allowlist = self._rules.allowlist
        denial = None if allowlist is None else allowlist.denial(target)
        if denial is not None:
            return TARGET_DENIED, denial
        count = self._rules.partitions.get(target, 0)
        if not count:
            return TARGET_UNKNOWN, f"there is no topic {target}"
        if partition >= count:
            return TARGET_UNKNOWN, f"{target} has partitions 0 to {count - 1} only"
        return None


def _size(row: PolledRecord) -> int:
    _, _, key, value, headers = row
    named = sum(
        len(name) + len(content or b"") + _HEADER_EXTRA_BYTES for name, content in headers or ()
    )
    return len(key or b"") + len(value or b"") + named + RECORD_EXTRA_BYTES
