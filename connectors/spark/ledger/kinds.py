"""Kinds of settlements (ways in which an output settles a record): what each may settle, and its
cause. A new kind is one more row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from connectors.spark.ledger.facts import COPIED, DELIVERED, FORWARDED, LETTER, OUTCOME
from delayservice.contract.entry import CANCEL, COPY, FIRE, HOMEBOUND, INVALID, SCHEDULE

WAITING: Final = 100
"""Kind of a requeued record that waits until it can be sent to its home, in addition to the kinds
in ``entry``."""

_DELAYED: Final = frozenset({SCHEDULE, COPY})
PENDING: Final = _DELAYED | {WAITING}
"""Kinds of source records that the next record of their id settles."""
FOREIGN: Final = frozenset({HOMEBOUND, WAITING})
"""Kinds of source records that must be sent to their home."""

KIND_NAMES: Final[Mapping[int, str]] = {
    SCHEDULE: "a record",
    COPY: "a copy",
    CANCEL: "a cancel",
    FIRE: "a fire",
    INVALID: "a record that breaks the contract",
    HOMEBOUND: "a record whose id is at home in another partition",
    WAITING: "a copy that waits for its home",
}
"""Names of kinds of source records, for use within a sentence."""


class Settlement(NamedTuple):
    """Kind of settlement: a way in which an output settles a record.

    Attributes:
        role: role of the output's ledger rows.
        of: kinds of source records that may be settled so.
        by: kind of the canceller that must have caused it, for a user's or requeued record; None:
            it happens at the due time.
        verb: past participle, for use after "the record was".
    """

    role: int
    of: frozenset[int]
    by: int | None
    verb: str


SETTLEMENTS: Final[Mapping[str, Settlement]] = {
    "delivered": Settlement(DELIVERED, _DELAYED, None, "delivered"),
    "dead_lettered": Settlement(LETTER, _DELAYED | FOREIGN | {INVALID}, None, "dead-lettered"),
    "requeued": Settlement(COPIED, _DELAYED | FOREIGN, None, "requeued"),
    "forwarded": Settlement(FORWARDED, FOREIGN, None, "sent home"),
    "expired": Settlement(OUTCOME, _DELAYED, None, "expired"),
    "cancelled": Settlement(OUTCOME, _DELAYED | {CANCEL, HOMEBOUND}, CANCEL, "cancelled"),
    "replaced": Settlement(OUTCOME, _DELAYED | {WAITING}, SCHEDULE, "replaced"),
    "fired": Settlement(OUTCOME, frozenset({FIRE, HOMEBOUND}), None, "fired"),
    "not_pending": Settlement(
        OUTCOME, frozenset({CANCEL, FIRE}), None, "given the outcome not_pending"
    ),
}
"""Kinds of settlements by name. Names of those with role ``OUTCOME`` are the values of
``delay-outcome``."""

OUTCOME_NAMES: Final = ("", *(name for name, s in SETTLEMENTS.items() if s.role == OUTCOME))
"""Values of ``delay-outcome``. The index of each is the ``kind`` of its ledger rows."""
OUTCOME_KINDS: Final = {name: kind for kind, name in enumerate(OUTCOME_NAMES)}

_BY_ROLE: Final = {one.role: name for name, one in SETTLEMENTS.items() if one.role != OUTCOME}


def settlement_name(role: int, outcome: str) -> str:
    """Return how a record was settled, by the role of the output's topic and the output's
    ``delay-outcome``; an unknown outcome is returned as it is.
    """
    return _BY_ROLE.get(role, outcome)
