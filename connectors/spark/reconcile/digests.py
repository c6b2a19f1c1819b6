"""The rows of the digest topic: which cuts can be compared, and what the copies have there.

What is chosen is decided on the driver from a few cut rows of each copy (``choose``); hour rows, of
which there are many, stay in Spark. ``docs/internals/digests.md`` has the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connectors.spark.common.topics import Place
from connectors.spark.reconcile.plan import Copy
from delayservice.engine.cursor import Cursor
from delayservice.store.wheel.reading import Damage

NO_CURSOR: Final = Cursor()
CUTS_KEPT: Final = 32
"""Of each copy so many cut rows are looked at; copies that have none of them in common are apart
by that many intervals.
"""
GONE_MS: Final = 86_400_000
"""A node whose newest cut is so much older than another's does not catch up by itself."""


@dataclass(frozen=True, slots=True)
class CutRow:
    """The fields of a cut row; ``row`` is its own offset in the digest topic, ``hash`` is signed.
    ``pending`` is None in rows of older versions.
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
        """The node whose copy it is, and the topic and partition."""
        return self.node, self.topic, self.partition


class Retired(NamedTuple):
    """A tombstone of cut rows: the node keeps no copy of the shard any more."""

    node: str
    topic: str
    partition: int
    row: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Which copies should be there.

    Attributes:
        nodes: of every shard, if ``replicas`` is 0; else the nodes that there are. Copies of other
            nodes are not looked at; none: all that report are.
        replicas: copies of each shard at least.
        behind_ms: a copy whose newest cut is so much older than another's is behind, and so is one
            with a cut of that age while the slice goes on. A cut of which the copy says that it has
            not come so far does not count.
    """

    nodes: tuple[str, ...] = ()
    replicas: int = 0
    behind_ms: int = 600_000


class Served(NamedTuple):
    """A shard as it is served now: the topic's id, and its cursor before the digests were read."""

    topic_id: str
    cursor: Cursor


@dataclass(slots=True)
class Comparison:
    """The parts of one shard that are compared.

    Attributes:
        cursor: K and H at which the copies are compared.
        from_ms: only slots from here on are.
        cut: offset of the checkpoint; None: not by digests.
        cut_ms: when the broker appended it.
        nodes: whose copies are compared.
        rows: their cut rows, if it is by digests.
        damaged: what a node could not read of its copy.
        behind: nodes whose copy can't be compared, and why.
        stale: those of them that are behind only because the slice goes on, and their newest cuts.
        silent: nodes without a report, ``""`` for one of unknown name, and why.
        owners: nodes that deliver; of copies on disks any may.
        pending: records that wait, by the copy that has the most.
        records: of these, those that are compared with another copy or the log.
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
        """Topic and partition."""
        return self.topic, self.partition

    def to_json(self) -> dict[str, object]:
        """For the summary."""
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
        """A copy turned out to say nothing."""
        self.nodes.remove(node)
        self.rows = [row for row in self.rows if row.node != node]
        self.behind[node] = why


def choose(
    rows: Iterable[CutRow | Retired],
    shards: Mapping[Place, Served],
    expected: Expected,
    now_ms: int,
) -> list[Comparison]:
    """For each shard the newest cut that its copies have in common.

    Args:
        rows: of the copies, some of the newest of each.
        shards: what is compared.
        expected: which copies should be there.
        now_ms: the time by the brokers' clocks, as far as is known.
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
    """The cut rows that hold now, newest first; each cut once."""
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
    """Choose the cut that most copies have."""
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
    """Leave out copies that have published nothing since then although the slice goes on."""
    for node in list(found.nodes):
        newest = lives[node][0]
        if newest.cut_ms < since_ms and newest.cursor != cursor:
            age_s = (since_ms - newest.cut_ms) // 1000
            found.leave_out(node, f"its newest cut is {age_s} s too old, and the slice goes on")
            found.stale[node] = newest.cut


def _gone(lives: Mapping[str, Sequence[CutRow]], since_ms: int) -> dict[str, str]:
    """Nodes that have reported nothing since then, and what to do about it."""
    why = (
        "it has reported nothing for a day or longer: start it; if it was taken away for good, "
        "name the nodes that there are (--node)"
    )
    return {node: why for node, told in lives.items() if told[0].cut_ms < since_ms}


def _behind(told: Sequence[CutRow], since_ms: int, newest_ms: int) -> str | None:
    """Return why a copy can't be compared: it had reached none of its cuts since then.

    A copy may be some moments late at one cut; then the cut before is good enough.
    """
    reached = next((row for row in told if not row.behind), None)
    if reached is not None and reached.cut_ms >= since_ms:
        return None
    if told[0].behind:
        return f"has stored up to {told[0].stored} and not to {told[0].cursor.offset}"
    return f"its newest cut is {(newest_ms - told[0].cut_ms) // 1000} s older than another's"


def silent(nodes: Collection[str], expected: Expected) -> dict[str, str]:
    """Nodes that should have a copy of a shard and are not among ``nodes``, and why."""
    if expected.replicas:
        missing = expected.replicas - len(nodes)
        why = f"{len(nodes)} copies report, and {expected.replicas} are expected"
        return {"": why} if missing > 0 else {}
    if not nodes and not expected.nodes:
        return {"": "no copy reports this shard"}
    absent = [node for node in expected.nodes if node not in nodes]
    return dict.fromkeys(absent, "it has not reported this shard")
