"""A seeded load of delay records, written as any producer would write them: plain confluent-kafka,
plain headers. Only the header names are those of the contract; no service code is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

UID_HEADER = "load-uid"
"""Name of the header that identifies each record to ``smoke.judge``."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A record to be sent, with its delay in ms and its target topic."""

    uid: bytes
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    """The record's own headers, ``UID_HEADER`` first."""
    delay_ms: int
    target: str

    def to_send(self) -> list[tuple[str, bytes | None]]:
        """Return all headers: its own and the contract's."""
        return [
            *self.headers,
            ("delay-after", b"%d" % self.delay_ms),
            ("delay-target-topic", self.target.encode()),
        ]


def plan(records: int, targets: tuple[str, ...], delay_ms_max: int, seed: int) -> Iterator[Planned]:
    """Yield records with text, binary and null values, with and without keys and own headers,
    delayed by 0 to ``delay_ms_max`` milliseconds.
    """
    rng = random.Random(seed)  # noqa: S311  # a load that replays from its seed
    for number in range(records):
        uid = b"%d-%d" % (seed, number)
        key = rng.choice((None, b"", b"customer-%d" % rng.randrange(500), rng.randbytes(12)))
        value = rng.choice((b'{"order": %d}' % number, rng.randbytes(rng.randrange(200)), None))
        own: list[tuple[str, bytes | None]] = [(UID_HEADER, uid)]
        if number % 3 == 0:
            own += [
                ("trace", rng.randbytes(8)),
                ("trace", b"twice"),
                ("empty", b""),
                ("null", None),
            ]
        delay_ms = rng.choice((0, rng.randrange(100), rng.randrange(delay_ms_max + 1)))
        yield Planned(uid, key, value, tuple(own), delay_ms, rng.choice(targets))
