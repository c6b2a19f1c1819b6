"""Take-over of slices: finds and fences former writers, reads checkpoints ("Ownership" in the
design).

The claims are committed before this begins. The first checkpoints of the new owner are committed
after it, without outputs. Only then are records of the slices settled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
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
from delayservice.slices.edges import Edges
from delayservice.slices.lane import Lane
from delayservice.slices.log_end_queries import stored_of
from delayservice.slices.slice import Slice, Taken
from delayservice.slices.transaction import LoopParts

# JSON of a shard's contracts in a checkpoint: about 200 contracts.
CONTRACTS_BYTES_MAX: Final = 64 << 10

_log = structlog.get_logger(__name__)


def take_over(
    succession: TakeOverClient,
    me: str,
    slices: Mapping[int, int],
    places: Collection[Place],
    secrets: Collection[str],
) -> dict[int, Taken]:
    """Fence former writers of slices whose claims are committed, read the last checkpoints, and
    return the facts of slices that this node is still to own. Blocks: call it on a helper thread.

    ``slices``: the ``turn`` of this worker's newest claim of each, minus 1. Raise
    ``KafkaEdgeError`` if Kafka did not answer in time, or a checkpoint can't be decoded or
    verified.
    """
    claims = succession.await_claims(slices)
    wanted = succession.confirm(slices.keys())
    # Checked before any writer is fenced: a node with another secret must not fence the owner.
    newest = {n: _own_checkpoint(succession.newest(n), n, secrets) for n in wanted}
    names = {n: names_to_fence(claims[n], _tenure(newest[n]), me) for n in wanted}
    succession.fence(frozenset().union(*names.values()))
    faults.point("take_over")
    found = succession.read_to_end(wanted)
    bounds = succession.bounds([place for place in places if place[1] in wanted])
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


@dataclass(slots=True)
class TakeOver:
    """Take-over of several slices on a helper thread. ``stored``: S of each shard at its start."""

    future: Future[dict[int, Taken]]
    slices: tuple[int, ...]
    stored: Mapping[Place, int]


class TakeOvers:
    """Take-overs that one worker has under way. Only the loop's thread uses it."""

    def __init__(self, edges: Edges) -> None:
        self._background = edges.background
        self._succession = edges.succession
        self._secrets = edges.fingerprints
        self._jobs: list[TakeOver] = []

    @property
    def is_going(self) -> bool:
        return bool(self._jobs)

    def clear(self) -> None:
        for job in self._jobs:
            job.future.cancel()
        self._jobs.clear()

    def take_done(self) -> Iterator[TakeOver]:
        for job in [job for job in self._jobs if job.future.done()]:
            if job in self._jobs:  # else the one before has found the writer lost
                self._jobs.remove(job)
                yield job

    def begin(self, slices: Iterable[Slice], writer: str) -> None:
        for group in _grouped(slices):
            turns = {slice_.number: slice_.turn - 1 for slice_ in group}
            stored = stored_of(lane for slice_ in group for lane in slice_.lanes.values())
            run = partial(
                take_over,
                self._succession,
                writer,
                turns,
                stored.keys(),
                self._secrets,
            )
            self._jobs.append(TakeOver(self._background.submit(run), tuple(turns), stored))


# Slices whose last take-overs failed are in smaller groups: half the size for each failure.
def _grouped(slices: Iterable[Slice]) -> Iterator[list[Slice]]:
    by_setbacks: dict[int, list[Slice]] = {}
    for slice_ in slices:
        by_setbacks.setdefault(slice_.setbacks, []).append(slice_)
    for setbacks, group in by_setbacks.items():
        size = max(_GROUP_MAX >> setbacks, 1)
        yield from (group[at : at + size] for at in range(0, len(group), size))


class LaneTaker:
    """Take-over of single shards of claimed slices. ``await_end`` begins a query for the end of
    a lane's log that may have lost what the lane waits for.
    """

    def __init__(self, parts: LoopParts, await_end: Callable[[Lane], None]) -> None:
        self._parts = parts
        self._edges = parts.edges
        self._await_end = await_end

    def take(self, slice_: Slice, lane: Lane, bounds: Bounds, stored_before: int) -> None:
        """Make this node the owner of a shard. ``stored_before``: S before ``bounds`` were
        queried. Records stored since may lie above ``bounds.end``, unless they were read of an
        earlier leader: then the log was truncated.
        """
        if stored_before <= bounds.end and lane.is_read_by(bounds.leader_epoch):
            bounds = bounds._replace(end=max(bounds.end, lane.shard.stored))
        known, now_ms = slice_.known_of(lane.topic), self._edges.clock.wall_ms()
        if known is not None and known.topic_id == lane.topic_id:
            slice_.stated.setdefault(lane.topic, known.contracts)
        version_max = self._edges.gate.contract_version()
        if known is not None:  # nodes that do not know it can't follow the slice in any case
            version_max = max(version_max, known.contracts.newest_version)
        wanted = self._with_homes(lane, self._edges.contract_of(lane.topic, version_max))
        take_over_lane(lane, known, bounds, wanted, now_ms)
        self._await_end(lane)
        self._parts.transaction.touched.add(slice_.number)
        self._parts.agenda.look_again(lane)

    # The number of home partitions stays: pending ids would not be found any more.
    def _with_homes(self, lane: Lane, wanted: Contract) -> Contract:
        slices = self._parts.slices.values()
        lanes = [s.lanes[lane.topic] for s in slices if lane.topic in s.lanes]
        count = max(one.contracts.id_partitions for one in [lane, *lanes])
        if count in (0, wanted.id_partitions) or wanted.level_ms:
            return wanted
        _log.error(
            "id_partitions_kept",
            topic=lane.topic,
            partition=lane.partition,
            in_force=count,
            asked_for=wanted.id_partitions,
            hint="delivery.id_partitions was changed, which is ignored: pending ids would not be "
            "found any more. Set it back to the value in_force",
        )
        return replace(wanted, id_partitions=count)
