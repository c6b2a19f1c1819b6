"""``Stage``: shard and start time of one scene, and methods that write records as producers and the
service do.

A scene is a generator. It first writes as a producer; at each ``yield`` it waits until H and K have
advanced past these records; then it writes as the service, with a mistake if it is a defect. A
schedule is a record that requests a delay, not a control record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from delay_devtools.drill.outputs import OutputRecord, output_of
from delay_devtools.drill.service import PARK_MS, ROLL_WINDOW_MS, Act, ModelShard, ModelStep, Record
from delay_devtools.drill.users import KEYS, Request, TopicNames
from delay_devtools.drill.wire import (
    BY_KEY,
    HOUR_MS,
    MAX_DELAY_MS,
    MINUTE_MS,
    START_KEY,
    Headers,
    Place,
    pack,
    signed_envelope,
)

SECOND_MS: Final = 1_000
LATENESS_MS: Final = 50
LATE_MS: Final = 60_000
"""Largest lateness of a delivery that the audit does not report, in ms."""
GRACE_MS: Final = 5_000
"""Largest time between two deliveries of a record that the audit accepts under ``at_least_once``,
in ms.
"""
LONG_MS: Final = MAX_DELAY_MS + HOUR_MS
"""Delay that only the second contract allows, in ms."""
SOON_MS: Final = SECOND_MS + LATENESS_MS
"""Time of the outcome of a control record that is written one second after the scene's start, in ms
from the scene's start.
"""
TAIL: Final = -1
"""Step number of the scenes at the end of the history, past whose records H does not advance."""
_STRANGER: Final = b"a stranger's"

Where: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset."""


class Found(NamedTuple):
    """Finding of the audit: its kind, the record's topic, partition and offset (the output's, if it
    belongs to no record), and the place of the output (None: it concerns no output).
    """

    kind: str
    topic: str
    partition: int
    offset: int
    output: Where | None


class Defect(NamedTuple):
    """Injected defect, and the findings that it must lead to in each of ``worlds``: what a job
    examines (``topics``, ``follow``, ``disks``, ``digests``). A finding is a ``Found`` or a
    ``CopyFound``.
    """

    kind: str
    worlds: tuple[str, ...]
    findings: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Scenery:
    """Facts that all scenes of a history share.

    Attributes:
        names: names of the topics.
        shards: models of all shards, by partition.
        holes: offsets without a committed record, by topic and partition.
        rng: source of randomness.
        ahead_ms: time beyond K of every shard and before the end of the history, epoch
            milliseconds.
        stale_ms: time long before the end of the history, epoch milliseconds; a record due then and
            not settled is overdue.
    """

    names: TopicNames
    shards: Sequence[ModelShard]
    holes: Mapping[Place, Sequence[int]]
    rng: random.Random
    ahead_ms: int
    stale_ms: int


class Stage:
    """Shard and start time of one scene, with methods that write its records and expect findings.
    The methods' times are in ms from the scene's start. ``findings`` has the expected findings.

    Args:
        shared: facts shared by all scenes.
        partition: partition of the scene's shard.
        start_ms: start of the scene, epoch milliseconds.
        number: number of the scene, part of its record id.
    """

    def __init__(self, shared: Scenery, partition: int, start_ms: int, number: int) -> None:
        self.names = shared.names
        self.start_ms = start_ms
        self.ahead_ms = shared.ahead_ms
        self.stale_ms = shared.stale_ms
        self.partition = partition
        self.rng = shared.rng
        self.findings: list[Found] = []
        self.record_id = b"scene-%d" % number
        self.write: Callable[[OutputRecord], int] = _nowhere
        """Function that appends a record and returns its offset; set whenever the scene resumes."""
        self._shared = shared
        self._keys: dict[int, tuple[int, int]] = {}
        """Largest key of the scene's records, by partition."""
        self._ends: dict[int, int] = {}
        self._signed: dict[tuple[bytes | None, int], Headers] = {}

    # --- what producers write ------------------------------------------------------------------

    def asks(
        self,
        due: int = MINUTE_MS,
        at: int = 0,
        *,
        is_named: bool = False,
        is_keyed: bool | None = None,
        to: int = BY_KEY,
        expires: int | None = None,
        every: int = 0,
        code: str = "",
    ) -> Record:
        """Write a schedule with a random target, value and header; return it.

        Args:
            due: due time, in ms from the scene's start.
            at: time of writing, in ms from the scene's start.
            is_named: whether it has the scene's record id.
            is_keyed: whether it has a key; None: at random.
            to: partition of the target, or ``BY_KEY``.
            expires: expiry, in ms from the scene's start; None: no expiry.
            every: period of a recurring schedule, in ms; 0: not recurring.
            code: code of the dead letter that the contract requires; empty: a valid record.
        """
        rng, at_ms, due_ms = self.rng, self.start_ms + at, self.start_ms + due
        own: Headers = [("trace", b"%016x" % rng.getrandbits(64)), ("hop", b"1")]
        made = Request(self.partition, at_ms, None, b"%x" % rng.getrandbits(160), [], own=own)
        made.due_ms, made.to = due_ms, to
        made.target = rng.choice(self.names.targets)
        made.record_id = self.record_id if is_named else None
        if rng.random() < 0.5 if is_keyed is None else is_keyed:  # noqa: PLR2004  # either
            made.key = made.out_key = b"key-%d" % rng.randrange(KEYS)
        made.expires_ms = None if expires is None else self.start_ms + expires
        said = {
            "delay-target-topic": made.target.encode(),
            "delay-target-partition": None if to == BY_KEY else b"%d" % to,
            "delay-id": made.record_id,
            "delay-expires-at": None if expires is None else b"%d" % (self.start_ms + expires),
            "delay-every": b"%d" % every if every else None,
        }
        when = rng.choice([("delay-at", b"%d" % due_ms), ("delay-after", b"%d" % (due - at))])
        more = [(name, value) for name, value in said.items() if value is not None]
        made.headers = [*own, when, *more]
        if code:
            made.op, made.code = "", code
        return self._written(made, 0 if code else min(due_ms, at_ms + ROLL_WINDOW_MS))

    def controls(self, op: str, at: int = SECOND_MS) -> Record:
        """Write a control record, ``op`` (``cancel`` or ``fire``), for the scene's record id,
        ``at`` ms from the scene's start; return the control record.
        """
        headers: Headers = [("delay-id", self.record_id), ("delay-op", op.encode())]
        at_ms = self.start_ms + at
        made = Request(self.partition, at_ms, None, b"", headers, op, record_id=self.record_id)
        return self._written(made, 0)

    def breaks(self) -> Record:
        """Write a record with an invalid time, which the service must dead-letter; return it."""
        headers: Headers = [("own", b"1"), ("own", b"2"), ("delay-at", b"soon")]
        headers.append(("delay-target-topic", self.names.targets[0].encode()))
        made = Request(self.partition, self.start_ms, b"k", b"v", headers, "", code="time-invalid")
        made.target, made.own = self.names.targets[0], headers[:2]
        return self._written(made, 0)

    def forges(self, record: Record) -> Record:
        """Write a requeued record of ``record`` with a false signature, one second after the
        scene's start; return the requeued record.
        """
        again = self._again(record, record.request, 1)
        self._copy(record, again, self.start_ms + SECOND_MS, _STRANGER)
        return again

    def _written(self, asked: Request, key_ms: int) -> Record:
        place = (self.names.delay, asked.partition)
        said = OutputRecord(place, asked.key, asked.value, asked.headers, [], asked.written_ms)
        return Record(self._append(said, key_ms), key_ms, asked)

    # --- what the service writes ---------------------------------------------------------------

    @property
    def shard(self) -> ModelShard:
        """Return the scene's shard."""
        return self._shared.shards[self.partition]

    def does(
        self, act: Act, record: Record, at: int | None = None, by: int = -1, text: str = ""
    ) -> OutputRecord:
        """Return the record that the service writes for an act, without writing it.

        Args:
            act: what the service does with ``record``.
            record: record that is settled.
            at: time in ms from the scene's start; None: ``LATENESS_MS`` after the due time.
            by: offset of the canceller; -1: there is none.
            text: outcome of a control record, or code of a dead letter.
        """
        at_ms = record.request.due_ms + LATENESS_MS if at is None else self.start_ms + at
        return output_of(self.names, self.shard, ModelStep(act, record, at_ms, by, text))

    def says(self, output: OutputRecord) -> Where:
        """Write an output; return its topic, partition and offset."""
        return (*output.place, self._append(output, 0))

    def delivers(self, record: Record) -> Where:
        """Write the correct delivery of a record; return its topic, partition and offset."""
        return self.says(self.does("deliver", record))

    def delivers_copy(self, copy: Record) -> Where:
        """Write the correct delivery of a requeued record; return its topic, partition and
        offset.
        """
        return self.says(self.does("deliver", copy, copy.key_ms - self.start_ms + LATENESS_MS))

    def answers(self, control: Record, outcome: str, at: int = SECOND_MS + LATENESS_MS) -> Where:
        """Write ``outcome`` as the outcome of a cancel or fire, ``at`` ms from the scene's start;
        return its topic, partition and offset.
        """
        return self.says(self.does("control", control, at, text=outcome))

    def parks(
        self,
        record: Record,
        changes: Mapping[str, object] = MappingProxyType({}),
        base: int = 0,
        secret: bytes = b"",
    ) -> tuple[Record, Where]:
        """Write a requeued record of ``record``, as if it was parked; return the requeued record,
        and its topic, partition and offset.

        Args:
            record: record that the service parks.
            changes: fields of its ``Request`` that differ in the requeued record.
            base: first offset whose record of the same id cancels the requeued record; 0: the
                correct one.
            secret: key of the signature; empty: the cluster secret.
        """
        again = self._again(record, replace(record.request, **changes), 2)  # type: ignore[arg-type]  # fields of it
        again.base = base or again.base
        at_ms = record.request.due_ms + LATENESS_MS
        return again, self._copy(record, again, at_ms, secret or self.names.secret)

    def _copy(
        self, record: Record, again: Record, at_ms: int, secret: bytes, **more: object
    ) -> Where:
        asked = again.request
        headers = self.shard.copy_headers(record, again, secret, **more)
        self._signed[again.source, again.key_ms] = headers
        output = OutputRecord(self.shard.place, asked.out_key, asked.value, headers, [], at_ms)
        again.offset = self._append(output, again.key_ms)
        return (*output.place, again.offset)

    def _again(self, record: Record, asked: Request, attempt: int) -> Record:
        source = record.source or f"{self.shard.name}:{record.offset}".encode()
        key_ms = record.request.due_ms + PARK_MS
        return Record(-1, key_ms, asked, source, attempt, base=record.offset + 1)

    def occurs(self, record: Record, after: int = 0) -> tuple[Record, Where]:
        """Write the second occurrence of ``record``, a schedule that recurs every minute; return
        the occurrence, and its topic, partition and offset. It is due ``after`` ms too late.
        """
        due_ms = record.request.due_ms + MINUTE_MS + after
        source = f"{self.shard.name}:{record.offset}#2".encode()
        asked = replace(record.request, due_ms=due_ms)
        again = Record(-1, due_ms, asked, source, base=record.offset + 1)
        recur = pack((MINUTE_MS, "", "UTC", None, 2, 0, 0))
        settled, at_ms = replace(record, offset=-1), due_ms - MINUTE_MS + LATENESS_MS
        return again, self._copy(settled, again, at_ms, self.names.secret, v=2, recur=recur)

    def sends_home(self, record: Record) -> tuple[Record, Where]:
        """Write a record's envelope to the next partition; return the record as that partition has
        it, and the envelope's topic, partition and offset.
        """
        asked = record.request
        place = (self.names.delay, (self.partition + 1) % self.names.partitions)
        source = f"{self.shard.name}:{record.offset}".encode()
        facts = {"source": source, "written": asked.written_ms, "settles": record.offset}
        content = (asked.key, asked.value, asked.headers)
        headers = signed_envelope(place, self.names.secret, self.shard.name, facts, content)
        at_ms = self.start_ms + LATENESS_MS
        output = OutputRecord(place, asked.key, asked.value, headers, [], at_ms)
        offset = self._append(output, asked.due_ms)
        there = Record(offset, asked.due_ms, replace(asked, partition=place[1]), source)
        return there, (*place, offset)

    @staticmethod
    def numbered(output: OutputRecord) -> OutputRecord:
        """Return a delivery with ``#1`` appended to its ``delay-source``, as of a schedule's first
        occurrence.
        """
        (due, (name, source), *more) = output.told
        return replace(output, told=[due, (name, (source or b"") + b"#1"), *more])

    def arrived(self, there: Record) -> OutputRecord:
        """Return the delivery, not yet written, of a record that ``sends_home`` has written to
        another partition.
        """
        shard = self._shared.shards[there.request.partition]
        at_ms = there.request.due_ms + LATENESS_MS
        output = output_of(self.names, shard, ModelStep("deliver", there, at_ms))
        return replace(output, told=[*output.told, ("delay-shard", shard.name.encode())])

    def headers_of(self, copy: Record) -> Headers:
        """Return the headers with which this scene has written a requeued record."""
        return self._signed[copy.source, copy.key_ms]

    def hole(self) -> int:
        """Return an offset of the shard without a committed record, one of the last four at
        random.
        """
        return self.rng.choice(self._shared.holes[self.shard.place][-4:])

    def finds(self, kind: str, record: Record, where: Where | None = None) -> None:
        """Expect that the audit reports ``kind`` for a record, and for the output at ``where``
        (None: it names no output).
        """
        self.findings.append(Found(kind, *self.shard.place, record.offset, where))

    def finds_by_itself(self, kind: str, where: Where) -> None:
        """Expect that the audit reports ``kind`` for the output at ``where``, which belongs to no
        record.
        """
        self.findings.append(Found(kind, *where, where))

    # --- the log -------------------------------------------------------------------------------

    def _append(self, output: OutputRecord, key_ms: int) -> int:
        offset = self.write(output)
        topic, partition = output.place
        if topic == self.names.delay:
            self._ends[partition] = offset
            key = (key_ms, offset) if key_ms else START_KEY
            self._keys[partition] = max(self._keys.get(partition, START_KEY), key)
        return offset

    def is_passed(self, stop_ms: int) -> bool:
        """Return whether H of each shard has advanced past the scene's records, and their keys are
        before ``stop_ms`` (epoch milliseconds).
        """
        shards = self._shared.shards
        is_behind = all(shards[number].h > end for number, end in self._ends.items())
        return is_behind and all(key[0] < stop_ms for key in self._keys.values())

    def settle(self) -> None:
        """Advance K of each shard to the largest key of the scene's records there, as these are
        settled now.
        """
        for number, key in self._keys.items():
            shard = self._shared.shards[number]
            shard.key = max(shard.key, key)


def _nowhere(_: OutputRecord) -> int:
    raise AssertionError("a scene has begun before its time")


Scene: TypeAlias = Callable[[Stage], Iterator[None]]
