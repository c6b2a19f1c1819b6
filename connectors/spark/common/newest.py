"""The newest committed checkpoint of each slice, searched for backwards from the end of the topic.

Slices share the partitions of the checkpoint topic: the checkpoints of slice ``s`` lie in partition
``s % partitions``, keyed by ``b"%d" % s`` (``docs/internals/design.md``). The newest one of a busy
slice is near the end, that of an idle slice anywhere. So each partition is read once, in stretches
that grow on the way to its start, until every slice is found that the delay topics make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.kafka.scan import scan_partition
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.checkpoint import Checkpoint, decode_checkpoint

_FIRST_LOOK: Final = 512
"""Offsets before the end of a partition that are read first."""
_GROWTH: Final = 4
"""How much longer each further stretch is: few readers are opened, and what is read in vain is a
bounded multiple of what was needed. Where the log is compacted most offsets hold nothing."""


@dataclass(slots=True)
class CheckpointLog:
    """One partition of the checkpoint topic, read backwards.

    Attributes:
        config: of a consumer, read committed.
        start: first offset of the log.
        read_from: offset from which on it was read; no transaction below it is open.
        look: how many offsets are read next.
        found: newest checkpoint by slice, of those that were reached.
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
        """Return whether a newest checkpoint may lie further back.

        Args:
            slices: how many slices there are, as far as is known; 0: it is not known.
        """
        if self.read_from <= self.start:
            return False
        mine = range(self.partition, slices, self.partitions)
        return not slices or any(slice_no not in self.found for slice_no in mine)

    def look_back(self) -> None:
        """Read one stretch more towards the start.

        Raises:
            KafkaEdgeError: nothing came for a minute, or retention deleted the stretch.
        """
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
        """Return the slice of a key; None: it is no checkpoint's, or lies in a wrong partition."""
        if key is None or not key.isdigit():
            return None
        slice_no = int(key)
        return slice_no if slice_no % self.partitions == self.partition else None


def newest_checkpoints(
    logs: Iterable[CheckpointLog], partitions: Mapping[str, int]
) -> dict[int, Checkpoint]:
    """Return the newest checkpoint of every slice that has one.

    How many slices there are follows from the checkpoints: each names all delay topics that are
    served in its slice, so that of any slice names the topic with the most partitions.

    Raises:
        KafkaEdgeError: a log can't be read, or a checkpoint can't be followed.
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
    """Return the checkpoints of all logs; those that are ``known`` are not decoded again."""
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
    """Return the number of slices: the partitions of the widest delay topic that is served."""
    topics = {topic for checkpoint in checkpoints for topic in checkpoint.shards}
    return max((partitions.get(topic, 0) for topic in topics), default=0)
