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
        out: folder or URL for the results, as Spark names them; what it holds is replaced.
        checkpoint: the service's checkpoint topic.
        digests: its digest topic.
        repairs: its repair topic.
        folders: copies on disks, a node's state folder by its name; none: running nodes, by their
            digests.
        expected: which copies should be there.
        deep: hold every slot against the delay topics, not only where copies differ, and ask
            running nodes for records with ids, which digests know by their ids only.
        details: ask running nodes for the records of slots that are wrong.
        secrets: the cluster's, to tell forged copies; none: copies are believed.
        behind_records: a copy on a disk that lacks more of the log than this is behind.
        answer_timeout_s: how long to wait for another answer of a node.
        min_partitions: tasks at least that read a topic.
        topic: write findings and a summary to this topic, too.
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
        """Something in ``out``."""
        return f"{self.out.rstrip('/')}/{name}"
