"""What a new owner makes of the checkpoint: cursors and contracts for its lanes (rules 2 and 7)."""

from __future__ import annotations

import structlog

from delayservice.core.checkpoint import Checkpoint, ShardCheckpoint, decode_checkpoint
from delayservice.core.contract import Contract, Contracts
from delayservice.core.cursor import Cursor
from delayservice.errors import KafkaEdgeError
from delayservice.lanes.any_lane import AnyLane
from delayservice.lanes.ports import Bounds, Checkpoints

_log = structlog.get_logger(__name__)


def read_checkpoint(
    checkpoints: Checkpoints, slice_no: int, secret_fingerprint: str
) -> Checkpoint | None:
    """The slice's newest checkpoint; None when it was never served.

    Raises:
        KafkaEdgeError: it can't be read, or was written with another cluster secret.
    """
    data = checkpoints.latest(slice_no)
    return None if data is None else _own_checkpoint(data, slice_no, secret_fingerprint)


def check_secret(checkpoints: Checkpoints, slice_no: int, secret_fingerprint: str) -> None:
    """Before anybody is fenced: a node with another secret must not fence one that serves.

    Raises:
        KafkaEdgeError: as ``read_checkpoint``.
    """
    data = checkpoints.peek(slice_no)
    if data is not None:
        _own_checkpoint(data, slice_no, secret_fingerprint)


def _own_checkpoint(data: bytes, slice_no: int, secret_fingerprint: str) -> Checkpoint:
    checkpoint = decode_checkpoint(data)
    if checkpoint.secret_fingerprint != secret_fingerprint:
        raise KafkaEdgeError(
            f"slice {slice_no} was served with another cluster secret; set node.cluster_secret to "
            "the one that every node of this cluster uses, or rolled and parked records would all "
            "be taken for forgeries"
        )
    return checkpoint


def take_over_lane(
    lane: AnyLane, known: ShardCheckpoint | None, bounds: Bounds, wanted: Contract
) -> None:
    """Let ``lane`` own its shard from the checkpoint on.

    Args:
        lane: reads and settles from now on.
        known: the shard's part of the checkpoint; None when it was never served.
        bounds: of its log, read after the old owner was fenced.
        wanted: the parameters that this node's settings ask for.
    """
    if known is not None and known.topic_id != lane.topic_id:
        _log.error(
            "topic_recreated",
            topic=lane.topic,
            partition=lane.partition,
            hint="the topic was deleted and made anew; what was pending in the old one is gone",
        )
        known = None
    lane.adopt(_agreed(lane, known, bounds, wanted))
    lane.take_over(known.cursor if known else Cursor(), bounds)


def _agreed(
    lane: AnyLane, known: ShardCheckpoint | None, bounds: Bounds, wanted: Contract
) -> Contracts:
    """What settings ask for holds from the end of the log on (rule 2): keys that exist stay.

    A log that was truncated may end below the last contract's start, which stays then.
    """
    if known is None:
        return Contracts([(0, wanted)])
    last_start = known.contracts.entries()[-1][0]
    return known.contracts.extended(max(bounds.end, lane.shard.stored, last_start), wanted)
