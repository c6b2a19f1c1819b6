"""Records of an archive as rows, and what became of each story in them."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from delay_devtools.drill.stories import NAMES, STORY

Header: TypeAlias = tuple[str, bytes | None]
Place: TypeAlias = tuple[str, int]
Where: TypeAlias = tuple[str, int, int]


@dataclass(slots=True, eq=False)
class Row:
    """One record; ``batch`` is the number of its batch in the archive."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    batch: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def where(self) -> Where:
        return self.topic, self.partition, self.offset

    @property
    def name(self) -> bytes:
        return f"{self.topic}:{self.partition}:{self.offset}".encode()

    def header(self, name: str) -> bytes | None:
        return dict(self.headers).get(name)

    def text(self, name: str) -> str:
        return (self.header(name) or b"").decode()

    def has(self, **headers: bytes | None) -> None:
        """Set headers, ``_`` for ``-``, or remove those that are None."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        known = {name for name, _ in self.headers}
        kept = [(name, told.get(name, value)) for name, value in self.headers]
        added = [(name, value) for name, value in told.items() if name not in known]
        self.headers = [h for h in (*kept, *added) if h[1] is not None or h[0] not in told]

    def claim(self) -> dict[str, object]:
        """What a requeued record (or an envelope) says."""
        said: dict[str, object] = json.loads(self.text("delay-copy") or self.text("delay-home"))
        return said


@dataclass(slots=True)
class Life:
    """A record of a delay topic, and the outputs that settle it."""

    source: Row
    outputs: list[Row] = field(default_factory=list)


# In the order in which the lives were begun.
Story: TypeAlias = list[Life]


def read_batch(folder: str, batch: int) -> list[Row]:
    return [
        Row(
            *(row["topic"], row["partition"], row["offset"], row["timestamp_ms"]),
            *(row["key"], row["value"]),
            [(header["key"], header["value"]) for header in row["headers"] or ()],
            batch,
        )
        for row in pq.read_table(folder, partitioning=None).to_pylist()
    ]


def write_batch(folder: str, rows: Iterable[Row]) -> None:
    path = Path(folder)
    schema = pq.read_table(folder, partitioning=None).schema
    for file in path.iterdir():
        file.unlink()
    shaped = [
        {
            **{name: getattr(row, name) for name in schema.names if name in Row.__slots__},
            "headers": [{"key": name, "value": value} for name, value in row.headers],
        }
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(shaped, schema), path / "spoilt.parquet")


class Rows(dict[Where, Row]):
    """Rows that may be spoilt, by place. ``ends``: where each partition ends, with added rows."""

    def __init__(self, rows: Iterable[Row], ends: Mapping[Place, int]) -> None:
        super().__init__({row.where: row for row in rows})
        self.ends = defaultdict(int, ends)
        delayed = sorted((r for r in self.values() if is_delayed(r.topic)), key=lambda r: r.where)
        # Offsets without a committed record: those of markers and of aborted records.
        self.holes = [
            (*before.place, offset)
            for before, after in pairwise(delayed)
            if (before.place, before.batch) == (after.place, after.batch)
            for offset in range(before.offset + 1, after.offset)
        ]

    def add(self, row: Row, place: Place) -> Row:
        """Add a row behind the last one of its partition."""
        offset = self.ends[place]
        self.ends[place] = offset + 1
        return self.put(replace(row, headers=[*row.headers]), (*place, offset))

    def put(self, row: Row, where: Where) -> Row:
        row.topic, row.partition, row.offset = where
        self[where] = row
        return row

    def remove(self, row: Row) -> None:
        del self[row.where]

    def stories(self) -> dict[str, list[Story]]:
        """Return all stories by the name of their kind."""
        lives = {row.where: Life(row) for row in self.values() if is_delayed(row.topic)}
        for row in self.values():
            source = settled_by(row)
            if source is not None and row.header(STORY) and source not in lives:
                # Retention has deleted its record.
                topic, partition, offset = source
                gone = replace(row, topic=topic, partition=partition, offset=offset)
                lives[source] = Life(gone)
            if source in lives:
                lives[source].outputs.append(row)
        told: dict[str, Story] = defaultdict(list)
        for life in sorted(lives.values(), key=lambda one: one.source.timestamp_ms):
            told[life.source.text(STORY)].append(life)
        found: dict[str, list[Story]] = defaultdict(list)
        for name, story in told.items():
            found[name.partition("-")[0]].append(story)
        return found


def is_delayed(topic: str) -> bool:
    return topic.startswith((NAMES.delay, f"{NAMES.prefix}_level_"))


def settled_by(row: Row) -> Where | None:
    """Return the place of the record that a row settles, or goes on with."""
    if not is_delayed(row.topic):
        settles = row.header("delay-settles")
        shard = row.text("delay-shard") or row.text("delay-source").rpartition(":")[0]
        return None if settles is None else _where(shard, settles)
    if not row.header("delay-copy") and not row.header("delay-home"):
        return None
    claim = row.claim()
    if claim["settles"] == -1:
        source = base64.b64decode(str(claim["source"])).decode().partition("#")[0]
        return _where(*source.rsplit(":", 1))
    return _where(claim.get("shard") or f"{row.topic}:{row.partition}", claim["settles"])


def _where(shard: object, offset: object) -> Where:
    topic, _, partition = str(shard).rpartition(":")
    return topic, int(partition), int(offset)  # type: ignore[call-overload]  # text or a number
