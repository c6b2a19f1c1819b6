"""Shard and start time of one scene, and methods that write records as producers and the service
do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from delay_devtools.drill.service import (
    PARK_MS,
    ROLL_WINDOW_MS,
    Act,
    ModelShard,
    ModelStep,
    OutputRecord,
    Record,
    output_of,
)
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
# Largest time between two deliveries of a record that the audit accepts under at_least_once, in ms.
GRACE_MS: Final = 5_000
# Delay that only the second contract allows, in ms.
LONG_MS: Final = MAX_DELAY_MS + HOUR_MS
# Time of the outcome of a control record that is written one second after the scene's start, in ms
# from the scene's start.
SOON_MS: Final = SECOND_MS + LATENESS_MS
# Step number of the scenes at the end of the history, past whose records H does not advance.
TAIL: Final = -1
_STRANGER: Final = b"a stranger's"

Where: TypeAlias = tuple[str, int, int]


class Found(NamedTuple):
    """Finding of the audit; ``output``: place of the output that it names."""

    kind: str
    topic: str
    partition: int
    offset: int
    output: Where | None


class Defect(NamedTuple):
    """Injected defect, and the findings that it must lead to in each of ``worlds``."""

    kind: str
    worlds: tuple[str, ...]
    findings: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Scenery:
    """Facts that all scenes share. ``ahead_ms`` is beyond K of every shard and before the end,
    ``stale_ms`` so long before the end that a record due then and not settled is overdue.
    """

    names: TopicNames
    shards: Sequence[ModelShard]
    holes: Mapping[Place, Sequence[int]]
    rng: random.Random
    ahead_ms: int
    stale_ms: int


class Stage:
    """Shard and start time of one scene, with methods that write its records and expect findings.
    The methods' times are in ms from the scene's start.
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
        # Function that appends a record and returns its offset; set whenever the scene resumes.
        self.write: Callable[[OutputRecord], int] = _nowhere
        self._shared = shared
        self._keys: dict[int, tuple[int, int]] = {}
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
        """Write a schedule with a random target, value and header.

        Without ``is_keyed``, it has a key at random. ``code``: dead letter that the contract
        requires.
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
        headers: Headers = [("delay-id", self.record_id), ("delay-op", op.encode())]
        at_ms = self.start_ms + at
        made = Request(self.partition, at_ms, None, b"", headers, op, record_id=self.record_id)
        return self._written(made, 0)

    def breaks(self) -> Record:
        headers: Headers = [("own", b"1"), ("own", b"2"), ("delay-at", b"soon")]
        headers.append(("delay-target-topic", self.names.targets[0].encode()))
        made = Request(self.partition, self.start_ms, b"k", b"v", headers, "", code="time-invalid")
        made.target, made.own = self.names.targets[0], headers[:2]
        return self._written(made, 0)

    def forges(self, record: Record) -> Record:
        # One second after the scene's start, with a false signature.
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
        return self._shared.shards[self.partition]

    def does(
        self, act: Act, record: Record, at: int | None = None, by: int = -1, text: str = ""
    ) -> OutputRecord:
        """Return, unwritten, the record that the service writes for an act; ``at``: None for
        ``LATENESS_MS`` after the due time.
        """
        at_ms = record.request.due_ms + LATENESS_MS if at is None else self.start_ms + at
        return output_of(self.names, self.shard, ModelStep(act, record, at_ms, by, text))

    def says(self, output: OutputRecord) -> Where:
        return (*output.place, self._append(output, 0))

    def delivers(self, record: Record) -> Where:
        return self.says(self.does("deliver", record))

    def delivers_copy(self, copy: Record) -> Where:
        return self.says(self.does("deliver", copy, copy.key_ms - self.start_ms + LATENESS_MS))

    def answers(self, control: Record, outcome: str, at: int = SECOND_MS + LATENESS_MS) -> Where:
        return self.says(self.does("control", control, at, text=outcome))

    def parks(
        self,
        record: Record,
        changes: Mapping[str, object] = MappingProxyType({}),
        base: int = 0,
        secret: bytes = b"",
    ) -> tuple[Record, Where]:
        """Write a requeued record, which differs in ``changes``; ``base``: 0 for the
        correct one.
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
        """Write the second occurrence of a record that recurs every minute, ``after`` ms
        too late.
        """
        due_ms = record.request.due_ms + MINUTE_MS + after
        source = f"{self.shard.name}:{record.offset}#2".encode()
        asked = replace(record.request, due_ms=due_ms)
        again = Record(-1, due_ms, asked, source, base=record.offset + 1)
        recur = pack((MINUTE_MS, "", "UTC", None, 2, 0, 0))
        settled, at_ms = replace(record, offset=-1), due_ms - MINUTE_MS + LATENESS_MS
        return again, self._copy(settled, again, at_ms, self.names.secret, recur=recur)

    def sends_home(self, record: Record) -> tuple[Record, Where]:
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
        (due, (name, source), *more) = output.told
        return replace(output, told=[due, (name, (source or b"") + b"#1"), *more])

    def arrived(self, there: Record) -> OutputRecord:
        shard = self._shared.shards[there.request.partition]
        at_ms = there.request.due_ms + LATENESS_MS
        output = output_of(self.names, shard, ModelStep("deliver", there, at_ms))
        return replace(output, told=[*output.told, ("delay-shard", shard.name.encode())])

    def headers_of(self, copy: Record) -> Headers:
        return self._signed[copy.source, copy.key_ms]

    def hole(self) -> int:
        return self.rng.choice(self._shared.holes[self.shard.place][-4:])

    def finds(self, kind: str, record: Record, where: Where | None = None) -> None:
        self.findings.append(Found(kind, *self.shard.place, record.offset, where))

    def finds_by_itself(self, kind: str, where: Where) -> None:
        # The output belongs to no record.
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
        shards = self._shared.shards
        is_behind = all(shards[number].h > end for number, end in self._ends.items())
        return is_behind and all(key[0] < stop_ms for key in self._keys.values())

    def settle(self) -> None:
        # The records of the scene are settled now.
        for number, key in self._keys.items():
            shard = self._shared.shards[number]
            shard.key = max(shard.key, key)


def _nowhere(_: OutputRecord) -> int:
    raise AssertionError("a scene has begun before its time")


Scene: TypeAlias = Callable[[Stage], Iterator[None]]
