"""Decides from comparisons which repairs may be made automatically.

A repair rebuilds one node's copies of the shards of one slice. It is made automatically only

- if the node is a replica of the slice, not the owner
- for one node of a slice at a time
- if each shard has a *witness*: a copy on another node without findings, whose node answers
- soon after the comparison
- a limited number of times.

All other repairs are left to users.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from connectors.spark.reconcile.digests import Comparison
from connectors.spark.reconcile.repair_plan import Copy, RepairStep

FRESH_S: Final = 60.0
"""Largest age of a comparison at which repairs may be based on it, in s."""

IS_OWNERS: Final = "the node delivers the slice, or may"
IS_SECOND: Final = "another copy of the slice is rebuilt first"
HAS_NO_WITNESS: Final = "no other copy was compared equal, or its node does not answer"
IS_OVER_LIMIT: Final = "the number of repairs is used up"
IS_STALE: Final = "the comparison took too long"


class CopyStanding(NamedTuple):
    is_owner: bool
    is_equal: bool


class Repair(NamedTuple):
    """Repair of one node's copies of one slice, with a witness for each shard."""

    node: str
    slice_no: int
    steps: tuple[RepairStep, ...]
    witnesses: tuple[Copy, ...]


class Chosen(NamedTuple):
    """Repairs to be made now, and by reason the number of steps that are left to users."""

    repairs: tuple[Repair, ...]
    left: Mapping[str, int]


def standings(
    compared: Collection[Comparison], wrong: Collection[Copy]
) -> dict[Copy, CopyStanding]:
    owners = {(node, one.partition) for one in compared for node in one.owners}
    return {
        (node, *one.place): CopyStanding(
            (node, one.partition) in owners, (node, *one.place) not in wrong
        )
        for one in compared
        for node in one.nodes
    }


def choose(
    steps: Sequence[RepairStep], known: Mapping[Copy, CopyStanding], repairs_left: int
) -> Chosen:
    groups: dict[tuple[str, int], list[RepairStep]] = {}
    for step in steps:
        groups.setdefault((step.node, step.partition), []).append(step)
    chosen: dict[int, Repair] = {}
    left: dict[str, int] = {}
    for (node, slice_no), group in groups.items():
        witnesses = _witnesses(node, group, known)
        if _is_owner(node, slice_no, known):
            why = IS_OWNERS
        elif slice_no in chosen:
            why = IS_SECOND
        elif witnesses is None:
            why = HAS_NO_WITNESS
        elif len(chosen) >= repairs_left:
            why = IS_OVER_LIMIT
        else:
            chosen[slice_no] = Repair(node, slice_no, tuple(group), witnesses)
            continue
        left[why] = left.get(why, 0) + len(group)
    return Chosen(tuple(chosen.values()), left)


def is_fresh(age_s: float) -> bool:
    return age_s <= FRESH_S


def confirmed(
    known: Mapping[Copy, CopyStanding], answered: Collection[Copy]
) -> dict[Copy, CopyStanding]:
    # Only copies that have just been read again count as equal.
    return {
        copy: one._replace(is_equal=one.is_equal and copy in answered)
        for copy, one in known.items()
    }


def _is_owner(node: str, slice_no: int, known: Mapping[Copy, CopyStanding]) -> bool:
    # A node counts as owner if none of its copies of the slice was compared.
    mine = [one for copy, one in known.items() if (copy[0], copy[2]) == (node, slice_no)]
    return not mine or any(one.is_owner for one in mine)


def _witnesses(
    node: str, steps: Sequence[RepairStep], known: Mapping[Copy, CopyStanding]
) -> tuple[Copy, ...] | None:
    """Return for each shard a copy without findings on another node, a replica if possible."""
    found = []
    for place in dict.fromkeys((step.topic, step.partition) for step in steps):
        right = [
            (one.is_owner, copy)
            for copy, one in known.items()
            if copy[1:] == place and copy[0] != node and one.is_equal
        ]
        if not right:
            return None
        found.append(min(right)[1])
    return tuple(found)
