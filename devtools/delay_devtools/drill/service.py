"""Model of a delay service for one shard, in memory, by the rules of ``docs/internals/design.md``.

``pass_offset`` applies rules 8 and 9 (H advances past a record), ``advance`` rule 10 (K advances).
``awaits`` is rule 14: H stops before a canceller while the requeued record that it cancels is not
written yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Literal, TypeAlias

from delay_devtools.drill.users import Request, TopicNames
from delay_devtools.drill.wire import (
    BY_KEY,
    DAY_MS,
    START_KEY,
    Headers,
    Place,
    pack,
    partition_of,
    signed_copy,
)

ROLL_WINDOW_MS: Final = DAY_MS
PARK_MS: Final = 10_000
# Value of Request.op for records of scenes: the model only advances H past them, and the scene
# writes their outputs.
SCENE: Final = "scene"
_ATTEMPTS: Final = 2


@dataclass(slots=True)
class Record:
    """Record of the delay topic, as the model knows it.

    Attributes:
        offset: offset of the record; -1: it is not written yet.
        key_ms: time of its next step, epoch milliseconds.
        source: ``delay-source`` of the original record, if this one is requeued.
        mark: offset of the record that cancels, replaces or fires it.
        base: of a requeued record: the first offset whose record of the same id cancels it.
        is_flying: whether it is a requeued record past which H has not advanced.
    """

    offset: int
    key_ms: int
    request: Request
    source: bytes | None = None
    attempt: int = 1
    mark: int | None = None
    base: int = 0
    is_flying: bool = False

    def payload(self) -> bytes:
        asked = self.request
        meta = None
        if (asked.record_id, asked.expires_ms, self.source) != (None, None, None):
            meta = (asked.record_id, self.source, self.attempt, asked.expires_ms)
        target = (asked.target, asked.to, asked.out_key, asked.value)
        return pack((*target, asked.own, asked.due_ms, meta))


Act: TypeAlias = Literal[
    "deliver", "fire", "expire", "letter", "copy", "cancelled", "replaced", "control"
]


@dataclass(frozen=True, slots=True)
class ModelStep:
    """What the modelled service does with one record. ``letter`` dead-letters it, ``copy`` requeues
    it, ``control`` writes the outcome of a control record; other acts give it that outcome.
    """

    act: Act
    record: Record
    at_ms: int
    by: int = -1
    text: str = ""
    again: Record | None = None


@dataclass(slots=True)
class ModelShard:
    """One partition of the delay topic, in its owner's state: K as ``(key_ms, offset)``, and H.
    ``marked``: records settled before their key, which a store still has.
    """

    place: Place
    key: tuple[int, int] = START_KEY
    h: int = 0
    waiting: dict[int, Record] = field(default_factory=dict)
    marked: list[Record] = field(default_factory=list)
    _named: dict[bytes, Record] = field(default_factory=dict)
    # Heap of the keys of pending records, (key_ms, offset); some of these records are settled
    # meanwhile.
    _due: list[tuple[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.place[0]}:{self.place[1]}"

    # --- H -------------------------------------------------------------------------------------

    def awaits(self, record: Record) -> bool:
        earlier = self._named.get(record.request.record_id or b"")
        return record.source is None and earlier is not None and earlier.offset < 0

    def pass_offset(self, record: Record, at_ms: int) -> Iterator[ModelStep]:
        asked = record.request
        self.h = record.offset + 1
        record.is_flying = False
        if asked.op == SCENE:
            return
        if asked.op == "":
            yield ModelStep("letter", record, at_ms, text=asked.code)
            return
        victim = self.hit(record)
        if asked.op != "schedule":
            text = {"cancel": "cancelled", "fire": "fired"}[asked.op] if victim else "not_pending"
            yield ModelStep("control", record, at_ms, text=text)
        if victim is not None:
            if self.waiting.pop(victim.offset, None) is not None:
                self.marked.append(victim)
            yield self._removed(victim, record, at_ms)
        if asked.op == "schedule":
            yield from self._take(record, at_ms)

    def _take(self, record: Record, at_ms: int) -> Iterator[ModelStep]:
        if record.mark is not None:
            self.marked.append(record)
            return
        self.waiting[record.offset] = record
        heappush(self._due, (record.key_ms, record.offset))
        if (record.key_ms, record.offset) <= self.key:
            yield self._settle(record, max(at_ms, record.key_ms), record.offset + 1)

    def hit(self, record: Record) -> Record | None:
        # Without an id, when requeued, or when the earlier record is neither pending nor flying,
        # nothing is hit.
        name = record.request.record_id
        if name is None or record.source is not None:
            return None
        earlier = self._named.pop(name, None)
        if record.request.op == "schedule":
            self._named[name] = record
        if earlier is None or not (earlier.is_flying or earlier.offset in self.waiting):
            return None
        earlier.mark = record.offset
        return earlier

    @staticmethod
    def _removed(victim: Record, by: Record, at_ms: int) -> ModelStep:
        if by.request.op != "fire":
            act: Act = "cancelled" if by.request.op == "cancel" else "replaced"
            return ModelStep(act, victim, at_ms, by.offset)
        expires_ms = victim.request.expires_ms
        if expires_ms is not None and at_ms > expires_ms:
            return ModelStep("expire", victim, at_ms)
        return ModelStep("fire", victim, at_ms, by.offset)

    # --- K -------------------------------------------------------------------------------------

    def advance(self, stop_ms: int, lateness_ms: int) -> Iterator[ModelStep]:
        while self._due and self._due[0][0] < stop_ms:
            key = heappop(self._due)
            record = self.waiting.get(key[1])
            if record is not None:
                self.key = key
                yield self._settle(record, key[0] + lateness_ms, self.h)

    def forget(self) -> None:
        self.marked = [record for record in self.marked if record.key_ms > self.key[0]]

    def _settle(self, record: Record, at_ms: int, base: int) -> ModelStep:
        asked = record.request
        del self.waiting[record.offset]
        if asked.due_ms > at_ms:
            key_ms = min(asked.due_ms, at_ms + ROLL_WINDOW_MS)
            again = self._copy_of(record, key_ms, record.attempt, base)
            return ModelStep("copy", record, at_ms, again=again)
        if asked.expires_ms is not None and at_ms > asked.expires_ms:
            return ModelStep("expire", record, at_ms)
        is_gone = asked.target.endswith("_gone")
        if record.attempt < _ATTEMPTS and (is_gone or asked.is_refused_once):
            again = self._copy_of(record, at_ms + PARK_MS, record.attempt + 1, base)
            return ModelStep("copy", record, at_ms, again=again)
        if is_gone:
            return ModelStep("letter", record, at_ms, text="target-unknown")
        return ModelStep("deliver", record, at_ms)

    def _copy_of(self, record: Record, key_ms: int, attempt: int, base: int) -> Record:
        source = record.source or f"{self.name}:{record.offset}".encode()
        copy = Record(-1, key_ms, record.request, source, attempt, base=base, is_flying=True)
        if record.request.record_id is not None:
            self._named[record.request.record_id] = copy
        return copy

    # --- headers -------------------------------------------------------------------------------

    def told(self, record: Record) -> Headers:
        asked = record.request
        told: Headers = [
            ("delay-due-at", b"%d" % asked.due_ms),
            ("delay-source", record.source or f"{self.name}:{record.offset}".encode()),
            ("delay-settles", b"%d" % record.offset),
        ]
        if asked.record_id is not None:
            told.append(("delay-id", asked.record_id))
        if record.attempt > 1:
            told.append(("delay-attempt", b"%d" % record.attempt))
        return told

    def copy_headers(self, record: Record, again: Record, secret: bytes, **more: object) -> Headers:
        asked = again.request
        facts = {
            "settles": record.offset,
            "source": again.source,
            "base": again.base,
            "at": again.key_ms,
            "due": asked.due_ms,
            "target": asked.target,
            "partition": asked.to,
            "id": asked.record_id,
            "attempt": again.attempt,
            "expires": asked.expires_ms,
            **more,
        }
        return signed_copy(self.place, secret, facts, (asked.out_key, asked.value, asked.own))


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """Record to write. ``own``: headers of the producer, or all of a requeued record; ``told``:
    headers that the service adds.
    """

    place: Place
    key: bytes | None
    value: bytes | None
    own: Headers
    told: Headers
    at_ms: int

    @property
    def headers(self) -> Headers:
        return [*self.own, *self.told]


def output_of(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    if step.act in ("deliver", "fire"):
        return _delivery(names, shard, step)
    if step.act == "copy":
        return _copy(names, shard, step)
    if step.act == "letter":
        return _letter(names, shard, step)
    return _outcome(names, shard, step)


def _delivery(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    asked, told = step.record.request, shard.told(step.record)
    if step.act == "fire":
        told.append(("delay-fired-by", b"%d" % step.by))
    place = (asked.target, _partition(names, step))
    return OutputRecord(place, asked.out_key, asked.value, asked.own, told, step.at_ms)


def _partition(names: TopicNames, step: ModelStep) -> int:
    asked, count = step.record.request, names.partitions
    if asked.to != BY_KEY:
        return asked.to
    key = asked.out_key
    return step.record.offset % count if key is None else partition_of(key, count)


def _copy(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    if step.again is None:
        raise AssertionError("a copy of nothing")
    asked = step.again.request
    headers = shard.copy_headers(step.record, step.again, names.secret)
    return OutputRecord(shard.place, asked.out_key, asked.value, headers, [], step.at_ms)


def _letter(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    asked, told = step.record.request, shard.told(step.record)
    key, headers = asked.key, asked.headers
    if asked.op:
        key, headers = asked.out_key, [*asked.own, ("delay-at", b"%d" % asked.due_ms)]
        headers.append(("delay-target-topic", asked.target.encode()))
        if asked.record_id is not None:
            headers.append(("delay-id", asked.record_id))
        if asked.expires_ms is not None:
            headers.append(("delay-expires-at", b"%d" % asked.expires_ms))
    why: Headers = [("delay-error", step.text.encode()), ("delay-error-detail", b"drilled")]
    place = (names.own("dead_letter"), 0)
    return OutputRecord(place, key, asked.value, headers, [*why, *told[1:3]], step.at_ms)


def _outcome(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    name = {"control": step.text, "expire": "expired"}.get(step.act, step.act)
    told = shard.told(step.record)
    headers: Headers = [("delay-outcome", name.encode()), ("delay-shard", shard.name.encode())]
    headers.append(told[2])
    headers += [header for header in told if header[0] == "delay-id"]
    if step.act in ("control", "expire"):
        headers.append(told[1])
    if step.by >= 0:
        headers.append(("delay-settled-by", b"%d" % step.by))
    place = (names.own("outcomes"), 0)
    return OutputRecord(place, step.record.request.record_id, None, [], headers, step.at_ms)
