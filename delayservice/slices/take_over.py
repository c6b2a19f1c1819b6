"""Take-over of slices: finds and fences former writers, reads checkpoints ("Ownership" in the
design).

The claims are committed before this begins. The first checkpoints of the new owner are committed
after it, without outputs. Only then are records of the slices settled.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import structlog

from delayservice.base import faults
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import (
    Checkpoint,
    ShardCheckpoint,
    check_secret,
    decode_checkpoint_of,
)
from delayservice.engine.claims import Tenure, names_to_fence
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import Bounds, Place, TakeOverClient
from delayservice.slices.lane import Lane
from delayservice.slices.slice import Slice, Taken

# JSON of a shard's contracts in a checkpoint: about 200 contracts.
CONTRACTS_BYTES_MAX: Final = 64 << 10

_log = structlog.get_logger(__name__)


def take_over(
    client: TakeOverClient,
    me: str,
    slices: Mapping[int, int],
    topic_ids: Mapping[Place, str],
    secrets: Collection[str],
) -> dict[int, Taken]:
    """Fence former writers of slices whose claims are committed, read the last checkpoints, and
    return the facts of slices that this node is still to own. Blocks: call it on a helper thread.

    ``slices``: the ``turn`` of this worker's newest claim of each, minus 1. Raise
    ``KafkaEdgeError`` if Kafka did not answer in time, or a checkpoint can't be decoded or
    verified.
    """
    claims = client.await_claims(slices)
    wanted = client.confirm(slices.keys())
    # Checked before any writer is fenced: a node with another secret must not fence the owner.
    newest = {n: _own_checkpoint(client.newest(n), n, secrets) for n in wanted}
    names = {n: names_to_fence(claims[n], _tenure(newest[n]), me) for n in wanted}
    client.fence(frozenset().union(*names.values()))
    faults.point("take_over")
    found = client.read_to_end(wanted)
    bounds = client.bounds({p: one for p, one in topic_ids.items() if p[1] in wanted})
    taken = {}
    for number in wanted:
        last = _own_checkpoint(found[number], number, secrets)
        mine = {place: bound for place, bound in bounds.items() if place[1] == number}
        taken[number] = Taken(claims[number].offset, last, mine, names[number])
    return taken


def _tenure(checkpoint: Checkpoint | None) -> Tenure | None:
    return None if checkpoint is None else checkpoint.tenure


def _own_checkpoint(
    data: bytes | None, slice_no: int, secrets: Collection[str]
) -> Checkpoint | None:
    if data is None:
        return None
    checkpoint = decode_checkpoint_of(slice_no, data)
    check_secret(checkpoint, secrets)
    return checkpoint


def take_over_lane(
    lane: Lane, known: ShardCheckpoint | None, bounds: Bounds, wanted: Contract, now_ms: int
) -> None:
    """Make ``lane`` the owner of its shard. ``known`` None: the shard was never served.
    ``wanted``: the contract that settings ask for.
    """
    if known is not None and known.topic_id != lane.topic_id:
        _log.error(
            "topic_recreated",
            topic=lane.topic,
            partition=lane.partition,
            hint="the topic was deleted and created again; its pending records are lost",
        )
        known = None
    lane.adopt(_agreed(lane, known, bounds, wanted, now_ms))
    if known is None:  # what retention deleted before the topic was served is not lost
        lane.take_over(Cursor(offset=bounds.start), bounds)
    else:
        lane.take_over(known.cursor, bounds, known.last_read, known.lost)


# ``wanted`` begins some way above the end of the log (rule 2): keys of existing records stay, and
# replicas know it before they store a record that it applies to. If it makes the checkpoint too
# large, it is left out until expired contracts can be dropped.
def _agreed(
    lane: Lane, known: ShardCheckpoint | None, bounds: Bounds, wanted: Contract, now_ms: int
) -> Contracts:
    if known is None:
        return Contracts([(0, wanted)])
    needed = known.contracts.needed_from(bounds.start)
    end = max(bounds.end, lane.shard.stored, known.cursor.offset)
    agreed = needed.extended(end, wanted, lane.offsets_ahead(end, now_ms))
    start, contract = agreed.entries()[-1]
    if (start, contract) in needed.entries():
        return agreed
    if len(agreed.encode()) <= CONTRACTS_BYTES_MAX:
        _log.info(
            "contract_extended",
            topic=lane.topic,
            partition=lane.partition,
            log_end=end,
            from_offset=start,
            version=contract.version,
        )
        return agreed
    _log.error(
        "contract_deferred",
        topic=lane.topic,
        partition=lane.partition,
        contracts=len(needed.entries()),
        hint="settings changed too often within the retention of this topic. The newest change "
        "applies to new records only after the oldest ones are deleted",
    )
    return needed


_GROUP_MAX: Final = 4_096
# For each failure. Few, as each waits for an answer while Kafka gives none.
_PARTS: Final = 8


def grouped(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Yield groups to be taken over together. Slices whose last take-overs failed are in ever more
    parts, so that one that can't be taken over soon fails alone.
    """
    by_setbacks: dict[int, list[Slice]] = {}
    for slice_ in slices:
        by_setbacks.setdefault(slice_.setbacks, []).append(slice_)
    for setbacks, group in by_setbacks.items():
        size = min(math.ceil(len(group) / max(_PARTS * setbacks, 1)), _GROUP_MAX)
        yield from (group[at : at + size] for at in range(0, len(group), size))
