"""Topics that are too small for their cluster, found at the start, while they can still grow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

COPIES_WANTED: Final = 3
"""Copies of a topic that survive a broker's loss while one more is restarted."""


def too_small(
    copies: Mapping[str, int], made: Collection[str], partitions: int, brokers: int
) -> Iterable[str]:
    """Yield what to change before records come, one sentence each.

    Args:
        copies: by topic of the service, how many copies each of its partitions has at least.
        made: delay topics that were created at this start.
        partitions: of each of them.
        brokers: how many brokers the cluster has.
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
