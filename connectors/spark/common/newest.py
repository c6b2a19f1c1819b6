"""Finds the newest committed checkpoint of each slice, backwards from the end of the topic.

Slices share the partitions of the checkpoint topic: the checkpoints of slice ``s`` are in partition
``s % partitions``, keyed by ``b"%d" % s`` (``docs/internals/design.md``). The newest one of a busy
slice is near the end, that of an idle slice anywhere. So each partition is read once, in growing
ranges towards its start, until every slice of the delay topics is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.kafka.scan import scan_partition
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.checkpoint import Checkpoint, decode_checkpoint
from delayservice.engine.claims import slice_no_of

_FIRST_LOOK: Final = 512
# Factor by which each range of offsets that is read is longer than the one before. It limits the
# number of reads; in a compacted log most offsets hold no record.
_GROWTH: Final = 4


@dataclass(slots=True)
class CheckpointLog:
    """One partition of the checkpoint topic, read backwards from its end: down to ``read_from``,
    with ``look`` offsets in the next read. ``found``: newest checkpoint of each slice so far.
    """

    config: Mapping[str, Any]
    topic: str
    partition: int
    partitions: int
    start: int
    read_from: int
    look: int = _FIRST_LOOK
    found: dict[int, bytes] = field(default_factory=dict)

    def lacks(self, slices: int) -> bool:
        """Return whether a slice's checkpoint may be below; ``slices``: 0 if not known yet."""
        if self.read_from <= self.start:
            return False
        mine = range(self.partition, slices, self.partitions)
        return not slices or any(slice_no not in self.found for slice_no in mine)

    def look_back(self) -> None:
        since, until = max(self.start, self.read_from - self.look), self.read_from
        stretch: dict[int, bytes] = {}
        for run in scan_partition(self.config, self.topic, self.partition, since, until):
            for row in run.rows:
                slice_no = self._slice_of(row[2])
                if slice_no is not None and row[3] is not None:
                    stretch[slice_no] = row[3]
        self.found = stretch | self.found
        self.read_from = since
        self.look *= _GROWTH

    def _slice_of(self, key: bytes | None) -> int | None:
        slice_no = slice_no_of(key)
        is_here = slice_no is not None and slice_no % self.partitions == self.partition
        return slice_no if is_here else None


def newest_checkpoints(
    logs: Iterable[CheckpointLog], partitions: Mapping[str, int]
) -> dict[int, Checkpoint]:
    """Return the newest checkpoint of each slice from all partitions of the checkpoint topic.

    A checkpoint names all delay topics of its slice. So the topic with the most partitions among
    all checkpoints gives the number of slices.
    """
    read = list(logs)
    found: dict[int, Checkpoint] = {}
    slices = 0
    while lacking := [log for log in read if log.lacks(slices)]:
        for log in lacking:
            log.look_back()
        found = _decoded(read, found)
        slices = _slices(found.values(), partitions)
    return found


def _decoded(
    logs: Sequence[CheckpointLog], known: Mapping[int, Checkpoint]
) -> dict[int, Checkpoint]:
    found = dict(known)
    for log in logs:
        for slice_no in log.found.keys() - found.keys():
            checkpoint = decode_checkpoint(log.found[slice_no])
            if checkpoint.slice_no != slice_no:
                raise KafkaEdgeError(
                    f"the checkpoint of slice {slice_no} is of slice {checkpoint.slice_no}; "
                    "something else writes to the checkpoint topic: find it, and restrict the "
                    "topic to the delay service"
                )
            found[slice_no] = checkpoint
    return found


def _slices(checkpoints: Iterable[Checkpoint], partitions: Mapping[str, int]) -> int:
    # The slices are numbered by the partitions of the largest delay topic.
    topics = {topic for checkpoint in checkpoints for topic in checkpoint.shards}
    return max((partitions.get(topic, 0) for topic in topics), default=0)
