"""Spoils some of the service's outputs, and remembers what an audit must find."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, TypeAlias

from delayservice.dev.drill.wire import Header, Headers, Place
from delayservice.errors import DelayServiceError

LATE_MS: Final = 60_000
"""What an audit is told to find late."""
_SPARED: Final = 0.02
"""Part of the deliveries, at the beginning, that is left alone: until each partition of a target
has a record, it is not known how many partitions it had."""
_PART: Final = 0.4
"""Of records that will be delivered in the plain way, a safe guess."""


class Found(NamedTuple):
    """A finding of the audit: the record that it is about, and the output if there is one."""

    kind: str
    topic: str
    partition: int
    offset: int
    output: tuple[str, int, int] | None


class Defect(NamedTuple):
    """What was done, and every finding that it must lead to; ``world`` says where."""

    kind: str
    world: str
    findings: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A record that settles another one.

    Attributes:
        place: where it goes.
        key: as written.
        value: as written.
        own: headers of the record itself.
        told: headers of the service.
        at_ms: its timestamp.
    """

    place: Place
    key: bytes | None
    value: bytes | None
    own: Headers
    told: Headers
    at_ms: int


class Delivery(NamedTuple):
    """A plain delivery that may be spoiled: what it settles, and how it should be."""

    shard: Place
    offset: int
    due_ms: int
    is_keyed: bool
    output: Output


Write: TypeAlias = Callable[[Output], int]
_Spoil: TypeAlias = Callable[["Saboteur", Delivery, Write], Sequence[Found]]


class Saboteur:
    """Takes plain deliveries and writes some of them wrong.

    Args:
        kinds: what to do, one defect each.
        records: how many records there will be.
        rng: chance.
        targets: the target topics.
        partitions: of each of them.
        letters: the dead-letter topic.
        outcomes: the outcome topic.
        holes: offsets without a committed record, by place; read when one is needed.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        records: int,
        rng: random.Random,
        targets: tuple[str, str],
        partitions: int,
        letters: str,
        outcomes: str,
        holes: Mapping[Place, Sequence[int]],
    ) -> None:
        self.defects: list[Defect] = []
        self._rng = rng
        self._targets = targets
        self._partitions = partitions
        self._letters = (letters, 0)
        self._outcomes = (outcomes, 0)
        self._holes = holes
        self._named: set[tuple[Place, int]] = set()
        self._seen = 0
        span = range(int(records * _SPARED), int(records * _PART))
        if len(kinds) > len(span):
            raise DelayServiceError(
                f"{len(kinds)} defects are too many for {records} records: ask for fewer defects, "
                "or for more records"
            )
        self._plan = dict(zip(rng.sample(span, len(kinds)), kinds, strict=True))

    @property
    def waiting(self) -> Counter[str]:
        """Return the number of defects that are still to be made, by kind."""
        return Counter(self._plan.values())

    def deliver(self, delivery: Delivery, write: Write) -> None:
        """Write a delivery, or what a bad service would write instead."""
        kind = self._plan.pop(self._seen, None)
        self._seen += 1
        if kind is None:
            write(delivery.output)
        else:
            found = self.KINDS[kind](self, delivery, write)
            self.defects.append(Defect(kind, "topics", tuple(found)))

    def unaccounted(self, delivery: Delivery, write: Write) -> None:
        """Deliver what no checkpoint says is settled."""
        found = self._found("not_checkpointed", delivery, write(delivery.output))
        self.defects.append(Defect("unaccounted", "topics", (found,)))

    def _found(
        self, kind: str, delivery: Delivery, offset: int | None, place: Place | None = None
    ) -> Found:
        where = place or delivery.output.place
        output = None if offset is None else (*where, offset)
        return Found(kind, *delivery.shard, delivery.offset, output)

    # --- kinds ---------------------------------------------------------------------------------

    def _drop(self, delivery: Delivery, _: Write) -> Sequence[Found]:
        return [self._found("lost", delivery, None)]

    def _double(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        write(delivery.output)
        return [self._found("duplicated", delivery, write(delivery.output))]

    def _hasten(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        early_ms = self._rng.randint(1, 5_000)
        at = write(replace(delivery.output, at_ms=delivery.due_ms - early_ms))
        return [self._found("early", delivery, at)]

    def _delay(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        output = delivery.output
        late_ms = LATE_MS + self._rng.randint(1, LATE_MS)
        at = write(replace(output, at_ms=output.at_ms + late_ms))
        return [self._found("late", delivery, at)]

    def _alter(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        output = delivery.output
        changed = self._rng.choice((_other_value, _fewer_headers, _turned_headers, _other_due))
        return [self._found("altered", delivery, write(changed(output)))]

    def _misplace(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        output = delivery.output
        topic, partition = output.place
        place = (self._targets[topic == self._targets[0]], partition)
        if delivery.is_keyed and self._partitions > 1 and self._rng.random() < 0.5:  # noqa: PLR2004
            place = (topic, (partition + 1) % self._partitions)
        at = write(replace(output, place=place))
        return [self._found("wrong_target", delivery, at, place)]

    def _misjudge(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        output = delivery.output
        if self._rng.random() < 0.5:  # noqa: PLR2004  # either
            return self._letter(
                delivery, write, [("delay-error", b"time-missing")], "wrong_outcome"
            )
        shard = f"{delivery.shard[0]}:{delivery.shard[1]}".encode()
        told: Headers = [("delay-outcome", b"expired"), ("delay-shard", shard), *output.told]
        at = write(Output(self._outcomes, None, None, [], told, output.at_ms))
        return [self._found("wrong_outcome", delivery, at, self._outcomes)]

    def _say_not_why(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        return self._letter(delivery, write, [], "dead_letter_missing_code")

    def _letter(
        self, delivery: Delivery, write: Write, why: Sequence[Header], kind: str
    ) -> Sequence[Found]:
        output = delivery.output
        told = [*why, *output.told[1:]]
        at = write(replace(output, place=self._letters, told=told))
        return [self._found(kind, delivery, at, self._letters)]

    def _invent(self, delivery: Delivery, write: Write) -> Sequence[Found]:
        """Beside the delivery, one of a record that was never committed."""
        output, shard = delivery.output, delivery.shard
        write(output)
        free = [hole for hole in self._holes[shard] if (shard, hole) not in self._named]
        hole = self._rng.choice(free)
        self._named.add((shard, hole))
        source = f"{shard[0]}:{shard[1]}:{hole}".encode()
        told: Headers = [output.told[0], ("delay-source", source), ("delay-settles", b"%d" % hole)]
        at = write(replace(output, told=told))
        return [Found("unknown_source", *shard, hole, (*output.place, at))]

    KINDS: ClassVar[Mapping[str, _Spoil]] = {
        "dropped": _drop,
        "duplicated": _double,
        "early": _hasten,
        "late": _delay,
        "altered_payload": _alter,
        "wrong_target": _misplace,
        "wrong_outcome": _misjudge,
        "letter_without_code": _say_not_why,
        "extra_output": _invent,
    }
    """Defects of outputs, by name."""


def _other_value(output: Output) -> Output:
    value = bytearray(output.value or b"\0")
    value[-1] ^= 1
    return replace(output, value=bytes(value))


def _fewer_headers(output: Output) -> Output:
    return replace(output, own=output.own[1:])


def _turned_headers(output: Output) -> Output:
    return replace(output, own=output.own[::-1])


def _other_due(output: Output) -> Output:
    (name, due), *more = output.told
    return replace(output, told=[(name, b"%d" % (int(due or b"0") - 1)), *more])
