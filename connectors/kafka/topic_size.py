"""Finds topics that are too small for their cluster, at the start, while they can still grow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

COPIES_WANTED: Final = 3
"""Number of copies with which a topic survives the loss of a broker while another is restarted."""


def too_small(
    copies: Mapping[str, int], made: Collection[str], partitions: int, brokers: int
) -> Iterable[str]:
    """Yield the changes to make before records come, one sentence each.

    Args:
        copies: smallest number of copies of any partition, by topic of the service.
        made: delay topics that were created at this start.
        partitions: number of partitions of each of these.
        brokers: number of brokers in the cluster.
    """
    wanted = min(COPIES_WANTED, brokers)
    by_copies: dict[int, list[str]] = {}
    for name, count in copies.items():
        if count < wanted:
            by_copies.setdefault(count, []).append(name)
    for count, names in sorted(by_copies.items()):
        yield (
            f"{', '.join(sorted(names))}: {count} of {wanted} copies that {brokers} brokers can "
            "keep; raise the replication factor with kafka-reassign-partitions.sh, and set "
            "topics.replication_factor for topics to come"
        )
    if made and partitions < brokers:
        yield (
            f"{', '.join(sorted(made))}: created with {partitions} partitions on {brokers} "
            f"brokers, so {partitions} workers deliver at most; add partitions before ids are in "
            "use, and set topics.partitions and delivery.id_partitions"
        )
