"""Retries with growing delays: a consumer in any language sends a failed record back with the list
of delays, and the service counts, chooses the delay and leaves out what would be one too many.

What is delivered has the headers of ``Backoff.kept``, so that a consumer sends back what it got.
"""

from __future__ import annotations

from typing import NamedTuple

from delayservice.contract.codes import RETRIES_EXHAUSTED, RecordRefusedError
from delayservice.contract.entry import Headers
from delayservice.contract.names import DELAY_BACKOFF, DELAY_RETRIES, DELAY_TARGET_TOPIC
from delayservice.contract.times import parse_count, parse_duration_ms


class Backoff(NamedTuple):
    """``delays`` is the text of the header, ``retries`` the number of deliveries that failed before
    the next one.
    """

    delays: bytes | None
    retries: int

    def delay_ms(self) -> int:
        """Return the delay before the next delivery; raise ``RecordRefusedError`` after the last
        one, or if one of the delays can't be read.
        """
        delays_ms = [
            parse_duration_ms(DELAY_BACKOFF, delay.strip(b" "))
            for delay in (self.delays or b"").split(b",")
        ]
        if self.retries >= len(delays_ms):
            raise RecordRefusedError(
                RETRIES_EXHAUSTED,
                f"{DELAY_RETRIES} is {self.retries}, and {DELAY_BACKOFF} allows {len(delays_ms)}",
            )
        return delays_ms[self.retries]

    def asked(self) -> Headers:
        return [(DELAY_BACKOFF, self.delays), (DELAY_RETRIES, b"%d" % self.retries)]

    def kept(self, target: str) -> Headers:
        """Return the headers that a delivery to ``target`` keeps."""
        counted = self._replace(retries=self.retries + 1)
        return [(DELAY_TARGET_TOPIC, target.encode()), *counted.asked()]


def backoff_of(headers: Headers) -> Backoff | None:
    """Return what the last header of each name says; a count that is no number is 0."""
    said = dict(headers)
    if DELAY_BACKOFF not in said:
        return None
    count = said.get(DELAY_RETRIES) or b""
    retries = parse_count(DELAY_RETRIES, count) if count.isdigit() else 0
    return Backoff(said[DELAY_BACKOFF], retries)
