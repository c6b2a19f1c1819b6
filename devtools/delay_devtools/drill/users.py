"""Random records of producers, with every kind of request in ``docs/header-contract.md``. A
schedule is a record that requests a delay, not a control record.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from delay_devtools.drill.wire import (
    BY_KEY,
    DAY_MS,
    HOUR_MS,
    Header,
    Headers,
    Place,
    signed_copy,
)

KEYS: Final = 997
_NAMED_MAX: Final = 200
"""Largest number of ids in each partition from which later records choose one to use again."""


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names of a drill's topics, and the secret of its cluster.

    Attributes:
        run: unique part of the names.
        partitions: number of partitions of the delay topic and of each target.
        secret: cluster secret, which signs requeued records and envelopes.
        checkpoint_partitions: number of partitions of the checkpoint topic, shared by slices. 0:
            one for each slice.
    """

    run: str
    partitions: int
    secret: bytes
    checkpoint_partitions: int = 0

    @property
    def delay(self) -> str:
        """Return the name of the delay topic."""
        return f"delay_topic_drill_{self.run}"

    @property
    def targets(self) -> tuple[str, str]:
        """Return the names of the two target topics that exist."""
        return f"drill_{self.run}_a", f"drill_{self.run}_b"

    @property
    def gone(self) -> str:
        """Return the name of a target topic that is allowed and does not exist."""
        return f"drill_{self.run}_gone"

    @property
    def allow(self) -> str:
        """Return the pattern of the allowed target topics."""
        return f"drill_{self.run}_*"

    def checkpoint_place(self, slice_no: int) -> Place:
        """Return topic and partition of a slice's checkpoints."""
        shared = self.checkpoint_partitions
        return self.own("checkpoint"), slice_no % shared if shared else slice_no

    def own(self, what: str) -> str:
        """Return the name of one of the service's own topics: ``what`` is ``checkpoint``,
        ``dead_letter``, ``digests`` and so on.
        """
        return f"delay_{what}_drill_{self.run}"


@dataclass(slots=True)
class Request:
    """Record of a producer, and its meaning by the header contract.

    Attributes:
        partition: partition of the delay topic.
        written_ms: timestamp, epoch milliseconds.
        key: key as written.
        value: value as written.
        headers: headers as written.
        op: ``schedule``, ``cancel``, ``fire``; empty: it breaks the contract.
        due_ms: due time of a schedule, epoch milliseconds.
        target: target topic.
        to: partition of the target, or ``BY_KEY``.
        out_key: key of the delivered record.
        own: headers that are delivered.
        record_id: id of the record; None: no id.
        expires_ms: expiry, epoch milliseconds; None: no expiry.
        code: error code of the dead letter of a record that breaks the contract.
        is_refused_once: whether the target refuses it at the first attempt.
    """

    partition: int
    written_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    op: str = "schedule"
    due_ms: int = 0
    target: str = ""
    to: int = BY_KEY
    out_key: bytes | None = None
    own: Headers = field(default_factory=list)
    record_id: bytes | None = None
    expires_ms: int | None = None
    code: str = ""
    is_refused_once: bool = False


class Users:
    """Generator of random producers' records.

    Args:
        names: names of the drill's topics.
        rng: seeded source of randomness.
    """

    def __init__(self, names: TopicNames, rng: random.Random) -> None:
        self._names = names
        self._rng = rng
        self._count = 0
        self._spoken: list[list[bytes]] = [[] for _ in range(names.partitions)]

    def request(self, written_ms: int) -> Request:
        """Return a record of a random kind, written at ``written_ms`` (epoch milliseconds)."""
        rng, number = self._rng, self._count
        self._count += 1
        partition = rng.randrange(self._names.partitions)
        value = b"%d %x" % (number, rng.getrandbits(160))
        own: Headers = [("trace", b"%016x" % rng.getrandbits(64)), ("hop", b"%d" % (number % 7))]
        made = Request(partition, written_ms, None, value, [], own=own)
        made.due_ms = written_ms + self._delay_ms()
        made.target = rng.choice(self._names.targets)
        rng.choices(self._kinds, cum_weights=_WEIGHTS)[0](self, made)
        return made

    def prompt(self, written_ms: int) -> Request:
        """Return a plain record, written and due at ``written_ms`` (epoch milliseconds)."""
        made = self.request(written_ms)
        made = Request(made.partition, written_ms, None, made.value, [], own=made.own)
        made.due_ms, made.target = written_ms, self._names.targets[0]
        _ask(made, ("delay-at", b"%d" % made.due_ms))
        return made

    def _delay_ms(self) -> int:
        longest_ms = self._rng.choices((HOUR_MS, DAY_MS, 5 * DAY_MS), cum_weights=(60, 85, 100))[0]
        return self._rng.randrange(longest_ms)

    def _key(self) -> bytes:
        return b"key-%d" % self._rng.randrange(KEYS)

    def _new_id(self, partition: int) -> bytes:
        name = b"id-%d" % self._count
        spoken = self._spoken[partition]
        if len(spoken) < _NAMED_MAX:
            spoken.append(name)
        else:
            spoken[self._rng.randrange(_NAMED_MAX)] = name
        return name

    def _old_id(self, partition: int) -> bytes:
        return self._rng.choice(self._spoken[partition] or [b"nobody"])

    # --- kinds ---------------------------------------------------------------------------------

    def _at(self, made: Request) -> None:
        _ask(made, ("delay-at", b"%d" % made.due_ms))

    def _at_text(self, made: Request) -> None:
        moment = datetime.fromtimestamp(made.due_ms // 1_000, UTC)
        text = f"{moment:%Y-%m-%dT%H:%M:%S}.{made.due_ms % 1_000:03d}Z"
        _ask(made, ("delay-at", text.encode()))

    def _after(self, made: Request) -> None:
        _ask(made, ("delay-after", b"%d" % (made.due_ms - made.written_ms)))

    def _after_text(self, made: Request) -> None:
        seconds = (made.due_ms - made.written_ms) // 1_000
        made.due_ms = made.written_ms + seconds * 1_000
        _ask(made, ("delay-after", b"PT%dS" % seconds))

    def _keyed(self, made: Request) -> None:
        made.key = made.out_key = self._key()
        self._at(made)

    def _to_partition(self, made: Request) -> None:
        made.key = made.out_key = self._key()
        made.to = self._rng.randrange(self._names.partitions)
        more = ("delay-target-partition", b"%d" % made.to)
        _ask(made, ("delay-at", b"%d" % made.due_ms), more)

    def _to_key(self, made: Request) -> None:
        made.key, made.out_key = self._key(), self._key()
        _ask(made, ("delay-at", b"%d" % made.due_ms), ("delay-target-key", made.out_key))

    def _tombstone(self, made: Request) -> None:
        made.key = made.out_key = self._key()
        made.value = None
        self._at(made)

    def _rocketmq(self, made: Request) -> None:
        _ask(made, ("TIMER_DELIVER_MS", b"%d" % made.due_ms))

    def _etf1(self, made: Request) -> None:
        made.key = made.record_id = b"etf1-%d" % self._count
        made.due_ms = made.due_ms // 1_000 * 1_000
        made.headers = [
            *made.own,
            ("scheduler-epoch", b"%d" % (made.due_ms // 1_000)),
            ("scheduler-target-topic", made.target.encode()),
        ]

    def _karafka(self, made: Request) -> None:
        made.key = made.record_id = b"karafka-%d" % self._count
        made.out_key = self._key()
        made.due_ms = made.due_ms // 1_000 * 1_000
        made.headers = [
            ("schedule_target_epoch", b"%d" % (made.due_ms // 1_000)),
            ("schedule_target_topic", made.target.encode()),
            ("schedule_target_key", made.out_key),
            ("schedule_source_type", b"schedule"),
            *made.own,
        ]

    def _named(self, made: Request) -> None:
        made.record_id = self._new_id(made.partition)
        made.key = made.out_key = made.record_id
        _ask(made, ("delay-at", b"%d" % made.due_ms), ("delay-id", made.record_id))

    def _again(self, made: Request) -> None:
        made.record_id = self._old_id(made.partition)
        _ask(made, ("delay-id", made.record_id), ("delay-at", b"%d" % made.due_ms))

    def _control(self, made: Request, op: str) -> None:
        made.op = op
        made.record_id = self._old_id(made.partition)
        made.value, made.own = b"", []
        made.headers = [("delay-id", made.record_id), ("delay-op", op.encode())]

    def _expiring(self, made: Request) -> None:
        late_ms = self._rng.choice((-1, DAY_MS))
        made.expires_ms = made.due_ms + late_ms
        more = ("delay-expires-at", b"%d" % made.expires_ms)
        _ask(made, ("delay-at", b"%d" % made.due_ms), more)

    def _invalid(self, made: Request) -> None:
        made.op = ""
        code, headers = self._rng.choice(_BROKEN)
        made.code = code
        made.headers = [*made.own, *headers]
        if code != "target-missing":
            made.headers.append(("delay-target-topic", made.target.encode()))

    def _forged(self, made: Request) -> None:
        made.op, made.code = "", "copy-forged"
        place: Place = (self._names.delay, made.partition)
        facts = {
            "settles": 0,
            "source": f"{place[0]}:{place[1]}:0".encode(),
            "base": 1,
            "at": made.due_ms,
            "due": made.due_ms,
            "target": made.target,
            "partition": BY_KEY,
            "id": None,
            "attempt": 1,
            "expires": None,
        }
        content = (made.key, made.value, made.own)
        made.headers = signed_copy(place, b"a stranger's", facts, content)

    def _to_nowhere(self, made: Request) -> None:
        made.target = self._names.gone
        self._at(made)

    def _refused_once(self, made: Request) -> None:
        made.is_refused_once = True
        self._at(made)

    _kinds = (
        *(_at, _at_text, _after, _after_text, _keyed, _to_partition, _to_key, _tombstone),
        *(_rocketmq, _etf1, _karafka, _named, _again),
        *(partial(_control, op="cancel"), partial(_control, op="fire"), _expiring),
        *(_invalid, _forged, _to_nowhere, _refused_once),
    )


def _ask(made: Request, when: Header, *more: Header) -> None:
    """Set the headers of a record: the producer's own, ``when`` (its due time or delay), the target
    topic, and ``more``.
    """
    made.headers = [*made.own, when, ("delay-target-topic", made.target.encode()), *more]


_BROKEN: Final[Sequence[tuple[str, Headers]]] = (
    ("time-invalid", [("delay-at", b"soon")]),
    ("time-missing", []),
    ("time-ambiguous", [("delay-at", b"1000"), ("delay-at", b"2000")]),
    ("target-missing", [("delay-at", b"1000")]),
    ("op-invalid", [("delay-at", b"1000"), ("delay-op", b"forget")]),
    ("delay-too-long", [("delay-after", b"%d" % (101 * DAY_MS))]),
)

_PARTS: Final = (300, 60, 100, 60, 160, 40, 30, 10, 40, 30, 30, 60, 12, 20, 8, 20, 8, 1, 3, 6)
_WEIGHTS: Final = tuple(sum(_PARTS[: n + 1]) for n in range(len(_PARTS)))
