"""Kinds of settlements (ways in which an output settles a record): which records each may settle,
and its cause. A new kind is one more row of ``SETTLEMENTS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from connectors.spark.ledger.facts import COPIED, DELIVERED, FORWARDED, LETTER, OUTCOME
from delayservice.contract.entry import CANCEL, COPY, FIRE, HOMEBOUND, INVALID, SCHEDULE

# Kind of a requeued record that waits until it can be sent to its home. Other kinds of records are
# in delayservice.contract.entry.
WAITING: Final = 100

_DELAYED: Final = frozenset({SCHEDULE, COPY})
# Kinds of source records that a canceller, a later record of their id, may settle.
PENDING: Final = _DELAYED | {WAITING}
# Kinds of source records that must be sent to their home in another partition.
FOREIGN: Final = frozenset({HOMEBOUND, WAITING})

KIND_NAMES: Final[Mapping[int, str]] = {
    SCHEDULE: "a record",
    COPY: "a copy",
    CANCEL: "a cancel",
    FIRE: "a fire",
    INVALID: "a record that breaks the contract",
    HOMEBOUND: "a record whose id is at home in another partition",
    WAITING: "a copy that waits for its home",
}


class Settlement(NamedTuple):
    """Way in which an output settles a record.

    ``role`` is that of the output's rows, ``of`` are the kinds of source records, ``by`` is the
    kind of the canceller that must have caused it, and ``verb`` stands after "the record was".
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
"""Kinds of settlements by name. Names of those with the role ``OUTCOME`` are the values of the
header ``delay-outcome``."""

# Values of delay-outcome, after an empty one. The index of each is the kind of its ledger rows.
OUTCOME_NAMES: Final = ("", *(name for name, s in SETTLEMENTS.items() if s.role == OUTCOME))
OUTCOME_KINDS: Final = {name: kind for kind, name in enumerate(OUTCOME_NAMES)}

_BY_ROLE: Final = {one.role: name for name, one in SETTLEMENTS.items() if one.role != OUTCOME}


def settlement_name(role: int, outcome: str) -> str:
    """Return the name in ``SETTLEMENTS``; an unknown outcome is returned unchanged."""
    return _BY_ROLE.get(role, outcome)
