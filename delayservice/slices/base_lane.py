"""State and steps common to precise lanes (``lane``) and level lanes (``level``)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from delayservice.contract.contracts import Contracts
from delayservice.engine.checkpoint import ShardCheckpoint
from delayservice.engine.flow import Flow
from delayservice.engine.level import LevelShard
from delayservice.engine.losses import Lost, skipped
from delayservice.engine.ports import Source, Targets
from delayservice.engine.routes import Routes
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.verdicts import Verdicts
from delayservice.slices.fetch import Fetch
from delayservice.slices.level_proof import LevelProof
from delayservice.slices.log_proof import LogProof
from delayservice.slices.lost import report_lost


class BaseLane(ABC):
    """Base class of lanes: one partition of a delay topic on one node; see ``AnyLane``.

    Args:
        topic: the delay topic.
        partition: its partition.
        topic_id: the topic's id, which a deleted topic of the same name does not share.
        source: the logs of the slice.
        routes: topics of outputs, and the secrets.
        flow: the limits of the slice; None: no limits.
        targets: states of target topics; None: all can be written to.
    """

    contracts: Contracts
    shard: Shard | LevelShard
    _proof: LogProof | LevelProof

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: str,
        source: Source,
        routes: Routes,
        flow: Flow | None,
        targets: Targets | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.place = (topic, partition)
        self.topic_id = topic_id
        self._secrets = routes.secrets
        self._settler = Settler(topic, partition, routes, Verdicts(), flow, targets)
        self._fetch = Fetch(source, self.place)
        self._lost: tuple[Lost, ...] = ()  # offsets that H skipped, as checkpoints say

    @property
    def verdicts(self) -> Verdicts:
        """Return the records that brokers refused, with the reasons."""
        return self._settler.verdicts

    def checkpoint(self) -> ShardCheckpoint:
        """Return the shard's part of a checkpoint that is committed now."""
        return ShardCheckpoint(
            self.topic_id, self.shard.staged, self.contracts, self._proof.committed_last, self._lost
        )

    def committed(self) -> None:
        """Note that the staged cursor is committed."""
        self.shard.commit()
        self.verdicts.committed()
        self._read_on()

    def aborted(self) -> None:
        """Return to the committed cursor: the transaction was certainly aborted."""
        self.shard.abort()
        self.verdicts.aborted()
        self._read_on()

    def _skip_lost(self, lost: tuple[Lost, ...], h: int, stored: int, log_start: int) -> None:
        """Record, and report if new, the lost offsets that H skips at a take-over."""
        self._lost = skipped(lost, h, stored, log_start)
        if self._lost != lost:
            report_lost(self.place, self._lost[-1])

    @abstractmethod
    def _read_on(self) -> None:
        """Fetch from the offset that the shard needs next, or pause fetching."""
