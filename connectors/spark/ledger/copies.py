"""Makes the ledger rows of requeued records and envelopes as outputs: one row for each record which
they state that they settle, continue or bring home. A row has the shard and offset of that record.

Any producer may have written a requeued record or envelope. Rows of those whose signature fits no
known secret have ``is_verified`` false; dead letters show which of them the service refused as
forged.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from connectors.spark.common.decode import claim_of, envelope_of, waiting
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import ARRIVED, CONTINUED, COPIED, FORWARDED, OutputFacts
from connectors.spark.ledger.rows import Ledger, LedgerRow, content_hash, group_hash, id_hash, pack
from delayservice.contract.codec import packed_recurrence
from delayservice.contract.entry import Row
from delayservice.contract.home import Group, taken_along
from delayservice.contract.requeue import CONTINUES, Claim


def said_by(
    ledger: Ledger, place: Place, row: Row, *, is_verified: bool = True
) -> Iterator[LedgerRow]:
    """Yield a row for each record which a requeued record or envelope states that it settles."""
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


def _said_by_envelope(ledger: Ledger, row: Row) -> Iterator[tuple[LedgerRow, OutputFacts]]:
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
