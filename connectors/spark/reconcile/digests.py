"""Chooses the checkpoints at which copies can be compared by their digests.

At some checkpoints, a node writes the sum of each of its copies into the digest topic, as a *cut
row*, and before it an *hour row* for each hour of due times whose records have changed. The driver
chooses from a few cut rows of each copy (``choose``); the many hour rows stay in Spark.
``docs/internals/digests.md`` has the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connectors.spark.common.topics import Place
from connectors.spark.reconcile.repair_plan import Copy
from delayservice.engine.cursor import Cursor
from delayservice.store.offline import Damage

NO_CURSOR: Final = Cursor()
CUTS_KEPT: Final = 32
# Time by which a node's newest cut row must be older than the newest of all nodes for the node to
# count as gone, in ms.
GONE_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class CutRow:
    """Row of the digest topic in which a node sums up its copy of a shard at one checkpoint.

    Attributes:
        row: offset of this row in the digest topic, by which rows are ordered.
        life: name that the copy got when it was built; a copy that is built again gets a new name.
        cut, cut_ms: offset of the checkpoint, and when the broker appended it, epoch ms.
        stored: source offset up to which the copy is stored, exclusive.
        from_ms: start of the first slot in the digest, epoch ms.
        count, hash: number of records in the digest, and the signed sum of their hashes.
        scanned_ms: begin of the last complete scan of the copy's disk, epoch ms; 0: none.
        behind: whether the copy can't be compared at the checkpoint, mostly as it was not stored up
            to H.
        role: ``owner`` or ``replica``: role of the node in the slice.
        damaged: ranges of the copy that the node could not read.
        pending: approximate number of pending records in the copy; None: not stated.
    """

    node: str
    topic: str
    partition: int
    row: int
    topic_id: str
    life: str
    cut: int
    cut_ms: int
    cursor: Cursor
    stored: int
    from_ms: int
    count: int
    hash: int
    scanned_ms: int
    behind: bool
    role: str
    store: str
    damaged: tuple[Damage, ...] = ()
    pending: int | None = None

    @property
    def copy(self) -> Copy:
        return self.node, self.topic, self.partition


class Retired(NamedTuple):
    """Tombstone of cut rows in the digest topic: the node no longer keeps a copy of the shard."""

    node: str
    topic: str
    partition: int
    row: int


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
        from_ms: start of the first slot to compare, epoch ms.
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
    rows: list[CutRow] = field(default_factory=list)
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
            "compared": self.nodes,
            "behind": self.behind,
            "silent": self.silent,
        }

    def leave_out(self, node: str, why: str) -> None:
        self.nodes.remove(node)
        self.rows = [row for row in self.rows if row.node != node]
        self.behind[node] = why


def choose(
    rows: Iterable[CutRow | Retired],
    shards: Mapping[Place, Served],
    expected: Expected,
    now_ms: int,
) -> list[Comparison]:
    """Return what to compare of each shard: the copies at the checkpoint for which the largest
    number of copies have cut rows; if several have as many, at the newest.
    """
    copies: dict[Copy, list[CutRow | Retired]] = {}
    for row in sorted(rows, key=lambda row: -row.row):
        copies.setdefault((row.node, row.topic, row.partition), []).append(row)
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


def _this_life(told: Sequence[CutRow | Retired], topic_id: str) -> list[CutRow]:
    # Only rows since the copy was last built count; rows of a former topic of the same name are
    # ignored.
    newest = told[0]
    if isinstance(newest, Retired):
        return []
    cuts: dict[int, CutRow] = {}
    for row in told:
        if isinstance(row, Retired) or row.life != newest.life or row.topic_id != topic_id:
            break
        cuts.setdefault(row.cut, row)
    return list(cuts.values())


def _compare(place: Place, lives: Mapping[str, Sequence[CutRow]], expected: Expected) -> Comparison:
    newest_ms = max((told[0].cut_ms for told in lives.values()), default=0)
    gone = _gone(lives, newest_ms - max(GONE_MS, expected.behind_ms))
    there = {node: told for node, told in lives.items() if node not in gone}
    found = Comparison(*place, silent={**silent(there.keys(), expected), **gone})
    found.damaged = {node: told[0].damaged for node, told in there.items() if told[0].damaged}
    found.owners = {node for node, told in there.items() if told[0].role == "owner"}
    found.pending = max((told[0].pending or told[0].count for told in there.values()), default=0)
    usable: dict[str, dict[int, CutRow]] = {}
    for node, told in there.items():
        if why := _behind(told, newest_ms - expected.behind_ms, newest_ms):
            found.behind[node] = why
        else:
            usable[node] = {row.cut: row for row in told if not row.behind}
    _choose_cut(found, usable)
    return found


def _choose_cut(found: Comparison, usable: Mapping[str, Mapping[int, CutRow]]) -> None:
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
    found.cut, found.cut_ms = cut, found.rows[0].cut_ms
    found.cursor = found.rows[0].cursor
    found.from_ms = max(row.from_ms for row in found.rows)


def _leave_out_stale(
    found: Comparison, lives: Mapping[str, Sequence[CutRow]], cursor: Cursor, since_ms: int
) -> None:
    # A copy whose newest cut row is old is current nevertheless if its cursor has not moved.
    for node in list(found.nodes):
        newest = lives[node][0]
        if newest.cut_ms < since_ms and newest.cursor != cursor:
            age_s = (since_ms - newest.cut_ms) // 1000
            found.leave_out(node, f"its newest cut is {age_s} s too old, and the slice goes on")
            found.stale[node] = newest.cut


def _gone(lives: Mapping[str, Sequence[CutRow]], since_ms: int) -> dict[str, str]:
    why = (
        "it has reported nothing for a day or longer: start it; if it was taken away for good, "
        "name the nodes that there are (--node)"
    )
    return {node: why for node, told in lives.items() if told[0].cut_ms < since_ms}


def _behind(told: Sequence[CutRow], since_ms: int, newest_ms: int) -> str | None:
    """Return why a copy has no usable cut row of a checkpoint at or after ``since_ms``, if so."""
    reached = next((row for row in told if not row.behind), None)
    if reached is not None and reached.cut_ms >= since_ms:
        return None
    if told[0].behind:
        return f"has stored up to {told[0].stored} and not to {told[0].cursor.offset}"
    return f"its newest cut is {(newest_ms - told[0].cut_ms) // 1000} s older than another's"


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
