"""Preparations for records that were just read: their targets are looked up by the time they are
due, and turns that an earlier owner gave away are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from delayservice.contract.codec import turn_of
from delayservice.contract.entry import COPY, Entry
from delayservice.engine.flow import Flow
from delayservice.engine.ports import Targets
from delayservice.engine.settle import Settler


class Foresight:
    """Looks at the entries of one shard as they are stored.

    Args:
        settler: says which targets settings deny: those are not looked up, for any client can name
            any number of them.
        flow: the limits of the slice; None: there are none.
        targets: what is known of targets; None: all can be written to.
    """

    def __init__(self, settler: Settler, flow: Flow | None, targets: Targets | None) -> None:
        self._settler = settler
        self._flow = flow
        self._targets = targets

    def note(self, entries: Sequence[Entry]) -> None:
        """Take a run of entries."""
        if self._flow is not None and self._flow.has_rates:
            self._observe_turns(self._flow, entries)
        if self._targets is not None:
            self._expect(self._targets, entries)

    def _observe_turns(self, flow: Flow, entries: Sequence[Entry]) -> None:
        """Note the turns of copies: an earlier owner gave them away, and this one honours them."""
        for entry in entries:
            if entry[1] == COPY:
                target, turn_ms = entry[4][0], turn_of(entry[4][6])
                if turn_ms is not None:
                    flow.observe(target, turn_ms)

    def _expect(self, targets: Targets, entries: Sequence[Entry]) -> None:
        named = {entry[4][:2]: entry[0] for entry in entries if entry[1] <= COPY}
        unknown = [
            target
            for target, offset in named.items()
            if target not in targets.fit and self._settler.denial(offset, target[0]) is None
        ]
        if unknown:
            targets.expect(unknown)
