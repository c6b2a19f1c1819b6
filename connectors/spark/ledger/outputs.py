"""Makes ledger rows of outputs in Python: of deliveries, dead letters and outcomes.

An output is a record of a target topic, the dead-letter topic or the outcome topic with the header
``delay-settles``. ``native`` makes the rows of usual deliveries and outcomes; this module reads all
other outputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from connectors.spark.common.decode import (
    NO_KEY,
    claim_of,
    envelope_of,
    key_hash,
    rows_of,
    runs,
    waiting,
    without_collector,
)
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import (
    ARRIVED,
    CONTINUED,
    COPIED,
    DELIVERED,
    DISCLAIMED,
    FORWARDED,
    LETTER,
    OUTCOME,
    OUTCOME_KINDS,
    OUTCOME_NAMES,
    SOURCE,
    OutputFacts,
)
from connectors.spark.ledger.rows import (
    FOREIGN,
    MALFORMED,
    NO_SHARD,
    NOWHERE,
    UNMARKED,
    Ledger,
    LedgerRow,
    batch_of,
    content_hash,
    group_hash,
    id_hash,
    pack,
)
from delayservice.contract import names
from delayservice.contract.backoff import backoff_of
from delayservice.contract.codec import packed_recurrence
from delayservice.contract.codes import COPY_FORGED
from delayservice.contract.entry import Headers, Original, PolledRecord
from delayservice.contract.home import Group, taken_along
from delayservice.contract.input_headers import own_headers
from delayservice.contract.requeue import CONTINUES, Claim


def said_by(
    ledger: Ledger, place: Place, row: PolledRecord, *, is_verified: bool = True
) -> Iterator[LedgerRow]:
    """Yield a row for each record which a requeued record or envelope states that it settles.

    Any producer may have written it. Rows of those whose signature fits no known secret have
    ``is_verified`` false; dead letters show which of them the service refused as forged.
    """
    claim = claim_of(row)
    if claim is None:
        said = _said_by_envelope(ledger, row)
    elif claim.payload[0] == place[0]:
        said = _said_by_waiting(ledger, place, claim)
    else:
        said = _said_by_copy(ledger, place, claim)
    topic = ledger.topics[place[0]]
    for made, facts in said:
        if not is_verified:
            facts = msgspec.structs.replace(facts, is_verified=False)  # noqa: PLW2901
        yield made._replace(
            at_ms=row[1],
            topic=topic,
            partition=place[1],
            place=row[0],
            id_hash=id_hash(facts.record_id),
            more=pack(facts),
        )


def _said_by_envelope(ledger: Ledger, row: PolledRecord) -> Iterator[tuple[LedgerRow, OutputFacts]]:
    arrived = envelope_of(row)
    if arrived is None:
        return
    topic, _, number = arrived.shard.rpartition(":")
    settled = (ledger.shards.get((topic, int(number))), arrived.settles)
    written = ledger.shard_of(arrived.sent.source.decode("utf-8", "replace"))
    facts = _going_home((arrived.sent,))
    content = content_hash(*arrived.sent.original)
    said = [(FORWARDED, *settled)] if arrived.settles >= 0 else []
    said += [(ARRIVED, *written)] if written != settled else []
    for role, shard, offset in said:
        if shard is not None:
            yield LedgerRow(shard, offset, role, content=content), facts


def _said_by_waiting(
    ledger: Ledger, place: Place, claim: Claim
) -> Iterator[tuple[LedgerRow, OutputFacts]]:
    # One row is for the record that this one was made of, the other for the waiting record whose
    # content it has taken over, if there is one.
    group, shard = waiting(claim.payload), ledger.shards.get(place)
    if group is None or shard is None:
        return
    target, partition, _, _, _, _, meta = claim.payload
    for offset, held in ((claim.settles, group), (taken_along(claim.payload), group[:-1])):
        if offset < 0:
            continue
        facts = msgspec.structs.replace(
            _going_home(held),
            target=target,
            target_partition=partition,
            record_id=meta[0] if meta else None,
            base=claim.base,
        )
        content = content_hash(*held[-1].original) if held else 0
        yield LedgerRow(shard, offset, COPIED, content=content), facts


def _said_by_copy(
    ledger: Ledger, place: Place, claim: Claim
) -> Iterator[tuple[LedgerRow, OutputFacts]]:
    origin = ((claim.payload[6] or (None, None))[1] or b"").decode()
    if claim.settles == CONTINUES:
        role, shard, offset = CONTINUED, *ledger.shard_of(origin)
    else:
        role, shard, offset = COPIED, _shard_of_claim(ledger, claim, place), claim.settles
    if shard is None:
        return
    target, partition, key, value, own, due_ms, meta = claim.payload
    facts = OutputFacts(
        origin,
        target=target,
        target_partition=partition,
        record_id=meta[0] if meta else None,
        expires_ms=meta[3] if meta else None,
        recur=packed_recurrence(meta) or b"",
        base=claim.base if ledger.shards.get(place) == shard else -1,
    )
    content = content_hash(key, value, own)
    yield LedgerRow(shard, offset, role, due_ms=due_ms, content=content), facts


def _shard_of_claim(ledger: Ledger, claim: Claim, place: Place) -> int | None:
    if claim.shard is None:
        return ledger.shards.get(place)
    topic, _, number = claim.shard.rpartition(":")
    return ledger.shards.get((topic, int(number)))


def _going_home(group: Group) -> OutputFacts:
    if not group:
        return OutputFacts()
    last = group[-1]
    return OutputFacts(
        last.source.decode("utf-8", "replace"),
        acts=last.kind,
        first_ms=last.written_ms,
        group=group_hash(group),
    )


_COUNT: Final = re.compile(rb"\d{1,18}")
_OFFSET: Final = re.compile(rb"-?\d{1,18}")
_SHARD: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249}):(\d{1,9})")
_PLACE: Final = re.compile(_SHARD.pattern + rb":\d{1,19}(?:#\d{1,19})?")
_SERVICE: Final = names.OUTPUT | {names.DELAY_ID}
_LETTER_ONLY: Final = names.DELAY_ERROR
# Part of the detail text of a dead letter whose content was left out.
_LEFT_OUT: Final = b" are left out, "


@dataclass(frozen=True, slots=True)
class OutputRows:
    ledger: Ledger

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        with without_collector():
            for batch in batches:
                for place, run in runs(batch):
                    yield batch_of(OutputReader(self.ledger, place).rows(rows_of(run)))


class OutputReader:
    """Reader of the outputs in one partition. Any producer may have written them."""

    def __init__(self, ledger: Ledger, place: Place) -> None:
        topic, self._partition = place
        self._ledger = ledger
        self._role = ledger.roles.get(topic, DELIVERED)
        self._topic = ledger.topics[topic]

    def rows(self, rows: Iterable[PolledRecord]) -> Iterator[LedgerRow]:
        """Yield the ledger rows of some records."""
        counts: Counter[int] = Counter()
        for row in rows:
            told = dict(row[4] or ())
            if names.DELAY_SETTLES in told:
                yield from self._of_marked(row, told, counts)
            else:
                counts[UNMARKED] += 1
        for what, count in counts.items():
            yield LedgerRow(NO_SHARD, what, SOURCE, place=count)

    def _of_marked(
        self, row: PolledRecord, told: Mapping[str, bytes | None], counts: Counter[int]
    ) -> Iterator[LedgerRow]:
        settles = told[names.DELAY_SETTLES]
        if settles is None or not _OFFSET.fullmatch(settles) or int(settles) < CONTINUES:
            yield self._note(row, MALFORMED, f"{names.DELAY_SETTLES} is no offset")
            return
        place = self._place_of(told)
        if place is None:
            why = f"{names.DELAY_SETTLES} is there, and no place that it is of"
            yield self._note(row, MALFORMED, why)
            return
        shard = self._ledger.shards.get(place)
        if shard is None:
            yield from self._of_foreign(row, place, counts)
        elif int(settles) >= 0:
            yield from self._of_settlement(row, shard, place, int(settles), told)

    def _of_settlement(
        self,
        row: PolledRecord,
        shard: int,
        place: Place,
        offset: int,
        told: Mapping[str, bytes | None],
    ) -> Iterator[LedgerRow]:
        content = (row[2], row[3], row[4] or [])
        due_ms, hashed, facts = self._facts(told, content)
        kind = OUTCOME_KINDS.get(facts.outcome, 0)
        is_here = facts.origin == f"{place[0]}:{place[1]}:{offset}"
        yield LedgerRow(
            shard,
            offset,
            self._role,
            kind=kind,
            due_ms=due_ms,
            at_ms=row[1],
            content=hashed,
            topic=self._topic,
            partition=self._partition,
            place=row[0],
            key_hash=key_hash(row[2]) if self._role == DELIVERED else NO_KEY,
            by=facts.by if self._role == OUTCOME else -1,
            id_hash=id_hash(told.get(names.DELAY_ID)),
            more=None if self._is_simple(facts, is_here=is_here) else pack(facts),
        )
        if self._role == LETTER and facts.code == COPY_FORGED:
            yield from self._disclaimed(shard, offset, content)

    def _is_simple(self, facts: OutputFacts, *, is_here: bool) -> bool:
        # The columns hold all facts of a delivery that no fire caused, and of an outcome that names
        # its canceller or, for a control record, its own place.
        if facts != OutputFacts(facts.origin, outcome=facts.outcome, by=facts.by):
            return False
        if self._role == OUTCOME:
            is_named = not facts.origin if facts.by >= 0 else is_here
            return is_named and facts.outcome in OUTCOME_NAMES[1:]
        return self._role == DELIVERED and facts.by < 0 and is_here

    def _of_foreign(
        self, row: PolledRecord, place: Place, counts: Counter[int]
    ) -> Iterator[LedgerRow]:
        # A shard that exists but is not judged gives no row: its outputs are only counted.
        topic, partition = place
        count = self._ledger.partitions.get(topic)
        if count is None or partition < count:
            counts[FOREIGN] += 1
        else:
            why = f"it says that it settles a record of {topic}:{partition}, and there is no such"
            yield self._note(row, NOWHERE, f"{why} partition")

    def _note(self, row: PolledRecord, what: int, why: str) -> LedgerRow:
        return LedgerRow(
            NO_SHARD,
            what,
            SOURCE,
            at_ms=row[1],
            topic=self._topic,
            partition=self._partition,
            place=row[0],
            more=why.encode(),
        )

    def _place_of(self, told: Mapping[str, bytes | None]) -> Place | None:
        named = told.get(names.DELAY_SHARD)
        pattern = _PLACE if named is None else _SHARD
        text = named if named is not None else told.get(names.DELAY_SOURCE)
        match = pattern.fullmatch(text or b"")
        return None if match is None else (match[1].decode("ascii"), int(match[2]))

    def _facts(
        self, told: Mapping[str, bytes | None], content: Original
    ) -> tuple[int, int, OutputFacts]:
        key, value, headers = content
        origin = _text(told, names.DELAY_SOURCE)
        due_ms = _number(told, names.DELAY_DUE_AT)
        if self._role == OUTCOME:
            by = _number(told, names.DELAY_SETTLED_BY)
            outcome = _text(told, names.DELAY_OUTCOME)
            by_source = _text(told, names.DELAY_SETTLED_BY_SOURCE)
            facts = OutputFacts(origin, outcome=outcome, by=by, by_source=by_source)
            return due_ms, 0, facts
        if self._role != LETTER:
            own = _own(headers)
            by = _number(told, names.DELAY_FIRED_BY)
            facts = OutputFacts(origin, by=by, is_mirror=_is_mirror(headers, told))
            return due_ms, content_hash(key, value, own), facts
        own = own_headers(headers)
        whole = _written(headers)
        asked = dict(whole)
        due_ms, backoff = _number(asked, names.DELAY_AT), backoff_of(whole)
        if backoff is not None:
            own += backoff.kept(_text(asked, names.DELAY_TARGET_TOPIC))
            due_ms = _number(asked, names.DELAY_DUE_AT)
        expires = asked.get(names.DELAY_EXPIRES_AT)
        facts = OutputFacts(
            origin,
            code=_text(told, names.DELAY_ERROR),
            is_bare=key is None and value is None and not whole,
            says_bare=_LEFT_OUT in (told.get(names.DELAY_ERROR_DETAIL) or b""),
            whole_hash=content_hash(key, value, whole),
            target=_text(asked, names.DELAY_TARGET_TOPIC),
            record_id=asked.get(names.DELAY_ID),
            expires_ms=None if expires is None else _number(asked, names.DELAY_EXPIRES_AT),
        )
        return due_ms, content_hash(key, value, own), facts

    def _disclaimed(self, shard: int, offset: int, content: Original) -> Iterator[LedgerRow]:
        # The service refused the requeued record or envelope at this offset as forged.
        key, value, headers = content
        place = next(place for place, number in self._ledger.shards.items() if number == shard)
        forged: PolledRecord = (offset, 0, key, value, _written(headers))
        for row in said_by(self._ledger, place, forged):
            yield row._replace(role=DISCLAIMED)


def _own(headers: Headers) -> Headers:
    # For each name that the service uses, the last header of that name is the service's.
    last = {name: at for at, (name, _) in enumerate(headers) if name in _SERVICE}
    return [header for at, header in enumerate(headers) if last.get(header[0]) != at]


def _written(headers: Headers) -> Headers:
    """Return the headers that a dead record had: without those about the error."""
    last = max((n for n, (name, _) in enumerate(headers) if name == _LETTER_ONLY), default=None)
    return headers[:last]


def _text(told: Mapping[str, bytes | None], name: str) -> str:
    return (told.get(name) or b"").decode("utf-8", "replace")


def _number(told: Mapping[str, bytes | None], name: str) -> int:
    """Return the number in a header; -1 if it does not consist of up to 18 digits."""
    text = told.get(name)
    return int(text) if text is not None and _COUNT.fullmatch(text) else -1


def _is_mirror(headers: Headers, told: Mapping[str, bytes | None]) -> bool:
    # Users' headers may be named delay-outcome, so the position counts.
    is_outcome = headers[0][0] == names.DELAY_OUTCOME and names.DELAY_SHARD in told
    return is_outcome or names.DELAY_ERROR in told
