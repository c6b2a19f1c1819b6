"""Decides from a topic's metadata why it can't be written to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from connectors.kafka.rights import WRITE, Access
from delayservice.contract.codes import (
    TARGET_DOWN,
    TARGET_UNAUTHORIZED,
    TARGET_UNKNOWN,
)


def is_good(access: Access) -> bool:
    return access.partitions > 0 and not access.lacks(WRITE)


def in_sync_missing(access: Access, config: Mapping[str, str]) -> int:
    # 0: all have enough, or a partition has no leader, for whose election the client waits.
    in_sync = min(access.in_sync, default=access.copies)
    if in_sync == 0 or in_sync >= access.copies:
        return 0
    needed = int(config.get("min.insync.replicas", "1"))
    return needed if in_sync < needed else 0


def obstacle_of(
    access: Access | None, topic: str, partition: int, in_sync_needed: int
) -> tuple[str, str] | None:
    """Return why a target can't be written to, as code and detail; None: it can. ``partition`` -1:
    any, so all of them must be good. ``in_sync_needed``: 0 unless a partition is known to have
    fewer in-sync replicas.
    """
    if access is None:
        return TARGET_UNKNOWN, f"topic {topic} is not known yet"
    if access.lacks(WRITE):
        return TARGET_UNAUTHORIZED, f"the service may not write to {topic}: give it Write"
    if access.partitions == 0:
        return TARGET_UNKNOWN, f"topic {topic} does not exist"
    if access.partitions <= partition:
        count = access.partitions
        return TARGET_UNKNOWN, f"topic {topic} has {count} partitions, none is {partition}"
    down = [n for n, in_sync in enumerate(access.in_sync) if in_sync < in_sync_needed]
    if down and (partition < 0 or partition in down):
        what = "a leader" if in_sync_needed == 1 else f"{in_sync_needed} copies in sync"
        return TARGET_DOWN, f"partitions {down} of topic {topic} are without {what}"
    return None


def unreached(
    access: Access | None, topic: str, partition: int, silent: Collection[int]
) -> tuple[str, str] | None:
    """Return, as code and detail, which partitions of a target are led by brokers in ``silent``,
    which do not answer this node; None: there are no such partitions.
    """
    if access is None or not silent:
        return None
    found = [n for n, leader in enumerate(access.leaders) if leader in silent]
    if found and (partition < 0 or partition in found):
        return TARGET_DOWN, f"the leaders of partitions {found} of topic {topic} do not answer"
    return None
