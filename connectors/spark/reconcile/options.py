"""Options of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from connectors.spark.reconcile.digests import Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """Options of a comparison.

    Attributes:
        client: options of librdkafka, ``bootstrap.servers`` at least.
        out: folder or URL for the results, as Spark names them; its content is replaced.
        checkpoint: the service's checkpoint topic.
        digests: the service's digest topic.
        repairs: the service's repair topic.
        folders: state folders by node, to compare copies on disks; empty: compare running nodes by
            their digests.
        expected: copies that should exist.
        deep: whether to compare every slot with the delay topics, not only differing ones, and ask
            running nodes for records with ids, of which digests only have the ids.
        details: whether to ask running nodes for the records of wrong slots.
        secrets: the cluster's secrets, to detect forged copies; empty: copies count as genuine.
        behind_records: number of missing log records above which a copy on a disk is behind.
        answer_timeout_s: longest wait for another answer of a node, in seconds.
        min_partitions: smallest number of tasks that read a topic.
        topic: topic to write findings and a summary to; None: no topic.
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
        """Return the path of the entry ``name`` in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"
