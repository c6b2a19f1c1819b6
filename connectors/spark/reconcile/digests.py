"""Chooses the checkpoints at which copies can be compared by their digests.

``replicas.digest_rows`` has the format of the digest topic: *cut rows* and *hour rows*. The driver
chooses from a few cut rows of each copy (``choose``); the many hour rows stay in Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connectors.spark.common.topics import Place
from connectors.spark.reconcile.repair_plan import Copy
from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import HOUR_MS
from delayservice.replicas.digest_rows import CutRow, Unreadable

NO_CURSOR: Final = Cursor()
CUTS_KEPT: Final = 32
# Time by which a node's newest cut row must be older than the newest of all nodes for the node to
# count as gone, in ms.
GONE_MS: Final = 86_400_000


class CutAt(NamedTuple):
    """Cut row of a copy, and its offset in the digest topic, by which rows are ordered."""

    row: int
    cut: CutRow

    @property
    def copy(self) -> Copy:
        return self.cut.node, self.cut.topic, self.cut.partition


class Retired(NamedTuple):
    """Tombstone of cut rows in the digest topic: the node no longer keeps a copy of the shard."""

    node: str
    topic: str
    partition: int
    row: int

    @property
    def copy(self) -> Copy:
        return self.node, self.topic, self.partition


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


class Served(NamedTuple):
    """State of a shard: id of its topic, and its cursor just before the digests were read."""

    topic_id: str
    cursor: Cursor


@dataclass(slots=True)
class Comparison:
    """Comparison of the copies of one shard: at which checkpoint, of which nodes.

    Attributes:
        from_ms: lowest key time to compare, epoch ms.
        cut, cut_ms: offset of the checkpoint at which digests are compared (None: on disks), and
            when the broker appended it, epoch ms.
        rows: cut rows at that checkpoint, one for each of ``nodes``; empty for copies on disks.
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
    cursor: Cursor = NO_CURSOR
    from_ms: int = 0
    cut: int | None = None
    cut_ms: int | None = None
    nodes: list[str] = field(default_factory=list)
    rows: list[CutAt] = field(default_factory=list)
    damaged: dict[str, tuple[Unreadable, ...]] = field(default_factory=dict)
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
            "compared": self.nodes,
            "behind": self.behind,
            "silent": self.silent,
        }

    def leave_out(self, node: str, why: str) -> None:
        self.nodes.remove(node)
        self.rows = [at for at in self.rows if at.cut.node != node]
        self.behind[node] = why


def choose(
    rows: Iterable[CutAt | Retired],
    shards: Mapping[Place, Served],
    expected: Expected,
    now_ms: int,
) -> list[Comparison]:
    """Return what to compare of each shard: the copies at the checkpoint for which the largest
    number of copies have cut rows; if several have as many, at the newest.
    """
    copies: dict[Copy, list[CutAt | Retired]] = {}
    for row in sorted(rows, key=lambda row: -row.row):
        copies.setdefault(row.copy, []).append(row)
    found = []
    for place, shard in sorted(shards.items()):
        lives = {
            copy[0]: _this_life(told, shard.topic_id)
            for copy, told in copies.items()
            if copy[1:] == place and (not expected.nodes or copy[0] in expected.nodes)
        }
        known = {node: told for node, told in sorted(lives.items()) if told}
        one = _compare(place, known, expected)
        _leave_out_stale(one, known, shard.cursor, now_ms - expected.behind_ms)
        found.append(one)
    return found


def _this_life(told: Sequence[CutAt | Retired], topic_id: str) -> list[CutAt]:
    # Only rows since the copy was last built count; rows of a former topic of the same name are
    # ignored.
    newest = told[0]
    if isinstance(newest, Retired):
        return []
    cuts: dict[int, CutAt] = {}
    for at in told:
        if isinstance(at, Retired):
            break
        if (at.cut.life, at.cut.topic_id) != (newest.cut.life, topic_id):
            break
        cuts.setdefault(at.cut.cut, at)
    return list(cuts.values())


def _compare(place: Place, lives: Mapping[str, Sequence[CutAt]], expected: Expected) -> Comparison:
    newest_ms = max((told[0].cut.cut_ms for told in lives.values()), default=0)
    gone = _gone(lives, newest_ms - max(GONE_MS, expected.behind_ms))
    there = {node: told for node, told in lives.items() if node not in gone}
    newest = {node: told[0].cut for node, told in there.items()}
    found = Comparison(*place, silent={**silent(there.keys(), expected), **gone})
    found.damaged = {node: cut.damaged for node, cut in newest.items() if cut.damaged}
    found.owners = {node for node, cut in newest.items() if cut.role == "owner"}
    found.pending = max((cut.pending for cut in newest.values()), default=0)
    usable: dict[str, dict[int, CutAt]] = {}
    for node, told in there.items():
        if why := _behind(told, newest_ms - expected.behind_ms, newest_ms):
            found.behind[node] = why
        else:
            usable[node] = {at.cut.cut: at for at in told if not at.cut.behind}
    _choose_cut(found, usable)
    return found


def _choose_cut(found: Comparison, usable: Mapping[str, Mapping[int, CutAt]]) -> None:
    shared = Counter(cut for cuts in usable.values() for cut in cuts)
    if not shared:
        return
    cut = max(shared, key=lambda cut: (shared[cut], cut))
    for node, cuts in usable.items():
        if cut in cuts:
            found.nodes.append(node)
            found.rows.append(cuts[cut])
        else:
            found.behind[node] = f"it has no cut in common with the others, such as {cut}"
    one = found.rows[0].cut
    found.cut, found.cut_ms, found.cursor = cut, one.cut_ms, Cursor(one.k, one.h)
    starts = {at.cut.from_ms for at in found.rows}
    # An hour is in a copy's rows from its ``from_ms`` on.
    found.from_ms = max(starts) if len(starts) == 1 else -(-max(starts) // HOUR_MS) * HOUR_MS


def _leave_out_stale(
    found: Comparison, lives: Mapping[str, Sequence[CutAt]], cursor: Cursor, since_ms: int
) -> None:
    # A copy whose newest cut row is old is current nevertheless if its cursor has not moved.
    for node in list(found.nodes):
        newest = lives[node][0].cut
        if newest.cut_ms < since_ms and Cursor(newest.k, newest.h) != cursor:
            age_s = (since_ms - newest.cut_ms) // 1000
            found.leave_out(node, f"its newest cut is {age_s} s too old, and the slice goes on")
            found.stale[node] = newest.cut


def _gone(lives: Mapping[str, Sequence[CutAt]], since_ms: int) -> dict[str, str]:
    why = (
        "it has reported nothing for a day or longer: start it; if it was taken away for good, "
        "name the nodes that there are (--node)"
    )
    return {node: why for node, told in lives.items() if told[0].cut.cut_ms < since_ms}


def _behind(told: Sequence[CutAt], since_ms: int, newest_ms: int) -> str | None:
    """Return why a copy has no usable cut row of a checkpoint at or after ``since_ms``, if so."""
    newest = told[0].cut
    reached = next((at.cut for at in told if not at.cut.behind), None)
    if reached is not None and reached.cut_ms >= since_ms:
        return None
    if newest.behind:
        return f"has stored up to {newest.stored} and not to {newest.h}"
    return f"its newest cut is {(newest_ms - newest.cut_ms) // 1000} s older than another's"


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
