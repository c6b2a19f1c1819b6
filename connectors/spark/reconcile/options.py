"""Options of a comparison of copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connectors.spark.reconcile.digests import Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Options of a comparison of copies.

    Attributes:
        client: options of librdkafka, at least ``bootstrap.servers``.
        out: folder or URL for the results, as Spark names it; its content is replaced.
        checkpoint: the service's checkpoint topic.
        digests: the service's digest topic.
        repairs: the service's repair topic.
        folders: nodes' state folders by name of the node, to compare copies on disks; empty:
            compare running nodes by their digests.
        expected: copies that should exist.
        deep: whether to compare every slot with the delay topics, not only those that differ
            between copies, and to ask running nodes for records with ids, as digests cover only
            their ids.
        details: whether to ask running nodes for the records of slots that differ from the log.
        secrets: cluster secrets, to detect forged requeued records; empty: all count as genuine.
        behind_records: number of records up to H that a copy on a disk may lack before it counts as
            behind.
        answer_timeout_s: longest wait, in seconds, from one report of a node to the next.
        min_partitions: smallest number of tasks that read a topic.
        topic: topic to which findings and a summary are written; None: no topic.
    """

    client: Mapping[str, str]
    out: str
    checkpoint: str = "delay_checkpoint"
    digests: str = "delay_digests"
    repairs: str = "delay_repairs"
    folders: Mapping[str, str] = field(default_factory=dict)
    expected: Expected = field(default_factory=Expected)
    deep: bool = False
    details: bool = True
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    behind_records: int = 100_000
    answer_timeout_s: float = 60.0
    min_partitions: int = 8
    topic: str | None = None

    def path(self, name: str) -> str:
        return f"{self.out.rstrip('/')}/{name}"
