"""Chooses the checkpoints at which copies can be compared by their digests.

``replicas.digest_rows`` has the format of the digest topic: *cut rows* and *hour rows*. The driver
chooses from a few cut rows of each copy (``choose``); the many hour rows stay in Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connectors.spark.common.cut import ShardCut
from connectors.spark.common.topics import Place
from connectors.spark.reconcile.repair_plan import Copy
from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import HOUR_MS
from delayservice.replicas.digest_rows import CutRow, Damage

CUTS_KEPT: Final = 32
# Time by which a node's newest cut row must be older than the newest of all nodes for the node to
# count as gone, in ms.
GONE_MS: Final = 86_400_000
_GONE: Final = (
    "it has reported nothing for a day or longer: start it; if it was taken away for good, "
    "name the nodes that there are (--node)"
)


class CutAt(NamedTuple):
    """Cut row of a copy, and its offset in the digest topic, by which rows are ordered."""

    row: int
    cut: CutRow

    @property
    def copy(self) -> Copy:
        return self.cut.node, self.cut.topic, self.cut.partition


@dataclass(frozen=True, slots=True)
class Expected:
    """Copies that should exist.

    Attributes:
        nodes: names of nodes; copies of other nodes are ignored. Unless ``replicas`` is set, each
            of them should have a copy of every shard. Empty: all nodes that report.
        replicas: smallest number of copies of each shard; 0: one copy on each of ``nodes``.
        behind_ms: largest age in ms of a copy's newest cut row; an older copy counts as behind. The
            age is relative to the shard's newest cut row, for which rows with ``behind`` do not
            count; and also to now, if the cursor has moved since.
    """

    nodes: tuple[str, ...] = ()
    replicas: int = 0
    behind_ms: int = 600_000


@dataclass(slots=True)
class Comparison:
    """Comparison of the copies of one shard: at which checkpoint, of which nodes.

    Attributes:
        from_ms: lowest key time to compare, epoch ms.
        cut, cut_ms: offset of the checkpoint at which digests are compared (None: on disks), and
            when the broker appended it, epoch ms.
        nodes: cut row of each compared copy at that checkpoint, by node; None for copies on disks.
        damaged: ranges of a copy that its node could not read, by node.
        behind: reason why a copy is not compared, by node.
        stale: by node, the checkpoint of the newest cut row of a copy that counts as behind only
            because its node has reported no newer one.
        silent: reason why a copy is missing, by node; ``""`` for a node of unknown name.
        owners: nodes that deliver the shard's slice, or may; for copies on disks all nodes.
        pending: largest number of pending records in any copy.
        records: number of pending records that are compared with another copy or with the log.
    """

    topic: str
    partition: int
    cursor: Cursor = Cursor()  # noqa: RUF009  # immutable
    from_ms: int = 0
    cut: int | None = None
    cut_ms: int | None = None
    nodes: dict[str, CutAt | None] = field(default_factory=dict)
    damaged: dict[str, tuple[Damage, ...]] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    pending: int = 0
    records: int = 0

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "cut": self.cut,
            "cut_ms": self.cut_ms,
            "k": list(self.cursor.key),
            "h": self.cursor.offset,
            "from_ms": self.from_ms,
            "pending": self.pending,
            "records": self.records,
            "compared": [*self.nodes],
            "behind": self.behind,
            "silent": self.silent,
        }


def choose(
    rows: Iterable[CutAt], shards: Mapping[Place, ShardCut], expected: Expected, now_ms: int
) -> list[Comparison]:
    """Return what to compare of each shard: the copies at the checkpoint for which the largest
    number of copies have cut rows; if several have as many, at the newest.
    """
    lives: dict[Place, dict[str, list[CutAt]]] = {place: {} for place in sorted(shards)}
    for at in sorted(rows, key=lambda at: (at.cut.node, -at.row)):
        shard = shards.get((at.cut.topic, at.cut.partition))
        if shard is None or at.cut.topic_id != shard.topic_id:
            continue
        if expected.nodes and at.cut.node not in expected.nodes:
            continue
        told = lives[shard.place].setdefault(at.cut.node, [])
        if not told or at.cut.life == told[0].cut.life:  # since the copy was last built
            told.append(at)
    return [_compare(shards[place], of, expected, now_ms) for place, of in lives.items()]


def _compare(
    shard: ShardCut, lives: Mapping[str, Sequence[CutAt]], expected: Expected, now_ms: int
) -> Comparison:
    newest_ms = max((told[0].cut.cut_ms for told in lives.values()), default=0)
    gone_ms = newest_ms - max(GONE_MS, expected.behind_ms)
    there = {node: told for node, told in lives.items() if told[0].cut.cut_ms >= gone_ms}
    found = Comparison(*shard.place, silent=silent(there.keys(), expected))
    found.silent |= dict.fromkeys(lives.keys() - there.keys(), _GONE)
    usable: dict[str, dict[int, CutAt]] = {}
    for node, told in there.items():
        newest = told[0].cut
        if newest.damaged:
            found.damaged[node] = newest.damaged
        if newest.role == "owner":
            found.owners.add(node)
        found.pending = max(found.pending, newest.pending)
        good = {at.cut.cut: at for at in reversed(told) if not at.cut.behind}
        reached_ms = max((at.cut.cut_ms for at in good.values()), default=-1)
        age_ms = now_ms - expected.behind_ms - newest.cut_ms
        if reached_ms >= newest_ms - expected.behind_ms:
            # A copy whose newest cut row is old is current nevertheless if its cursor has not
            # moved.
            if age_ms <= 0 or Cursor(newest.k, newest.h) == shard.earlier:
                usable[node] = good
                continue
            why = f"its newest cut is {age_ms // 1000} s too old, and the slice goes on"
            found.stale[node] = newest.cut
        elif newest.behind:
            why = f"has stored up to {newest.stored} and not to {newest.h}"
        else:
            why = f"its newest cut is {(newest_ms - newest.cut_ms) // 1000} s older than another's"
        found.behind[node] = why
    _choose_cut(found, usable)
    return found


def _choose_cut(found: Comparison, usable: Mapping[str, Mapping[int, CutAt]]) -> None:
    shared = Counter(cut for cuts in usable.values() for cut in cuts)
    if not shared:
        return
    cut = max(shared, key=lambda cut: (shared[cut], cut))
    why = f"it has no cut in common with the others, such as {cut}"
    found.behind |= {node: why for node, cuts in usable.items() if cut not in cuts}
    rows = {node: cuts[cut] for node, cuts in usable.items() if cut in cuts}
    found.nodes |= rows
    one = next(iter(rows.values())).cut
    found.cut, found.cut_ms, found.cursor = cut, one.cut_ms, Cursor(one.k, one.h)
    starts = {at.cut.from_ms for at in rows.values()}
    # An hour is in a copy's rows from its ``from_ms`` on.
    found.from_ms = max(starts) if len(starts) == 1 else -(-max(starts) // HOUR_MS) * HOUR_MS


def silent(nodes: Collection[str], expected: Expected) -> dict[str, str]:
    """Return nodes without an expected copy, each with the reason; ``""``: node of unknown name."""
    if expected.replicas:
        missing = expected.replicas - len(nodes)
        why = f"{len(nodes)} copies report, and {expected.replicas} are expected"
        return {"": why} if missing > 0 else {}
    if not nodes and not expected.nodes:
        return {"": "no copy reports this shard"}
    absent = [node for node in expected.nodes if node not in nodes]
    return dict.fromkeys(absent, "it has not reported this shard")
