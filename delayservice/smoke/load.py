"""Test records made from a seed, as any producer would make them: only the names of headers are
those of the service, and none of its code is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Name of the header that identifies each record to ``smoke.judge``.
UID_HEADER = "load-uid"


@dataclass(frozen=True, slots=True)
class Planned:
    """Record to send, with its delay in ms and target topic. ``uid`` is the value of its header
    ``UID_HEADER``.
    """

    uid: bytes
    key: bytes | None
    value: bytes | None
    # Headers that are delivered with the record, ``UID_HEADER`` first.
    headers: tuple[tuple[str, bytes | None], ...]
    delay_ms: int
    target: str

    def to_send(self) -> list[tuple[str, bytes | None]]:
        return [
            *self.headers,
            ("delay-after", b"%d" % self.delay_ms),
            ("delay-target-topic", self.target.encode()),
        ]


def plan(records: int, targets: tuple[str, ...], delay_ms_max: int, seed: int) -> Iterator[Planned]:
    """Yield ``records`` records with text, binary and null values, with and without keys, for
    random ``targets``, delayed by 0 to ``delay_ms_max`` milliseconds. Equal seeds give equal
    records.
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
        soon_ms = rng.randrange(min(100, delay_ms_max + 1))
        delay_ms = rng.choice((0, soon_ms, rng.randrange(delay_ms_max + 1)))
        yield Planned(uid, key, value, tuple(own), delay_ms, rng.choice(targets))
