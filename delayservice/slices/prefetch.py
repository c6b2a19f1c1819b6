from __future__ import annotations

from collections.abc import Sequence

from delayservice.contract.codec import turn_of
from delayservice.contract.entry import COPY, Entry
from delayservice.engine.flow import Flow
from delayservice.engine.ports import Targets
from delayservice.engine.settle import Settler


class Prefetch:
    """Preparations for records of one shard just stored. Targets that settings deny are not
    looked up, because a client can name any number of them.
    """

    def __init__(self, settler: Settler, targets: Targets, flow: Flow | None) -> None:
        self._settler = settler
        self._targets = targets
        self._flow = flow

    def note(self, entries: Sequence[Entry]) -> None:
        """Report the turns that an earlier owner gave to paced records, and look up unknown
        targets.
        """
        flow, targets = self._flow, self._targets
        if flow is not None and flow.has_rates:
            for payload in (entry[4] for entry in entries if entry[1] == COPY):
                turn_ms = turn_of(payload[6])
                if turn_ms is not None:
                    flow.observe(payload[0], turn_ms)
        named = {entry[4][:2] for entry in entries if entry[1] <= COPY}
        unknown = [
            target
            for target in named
            if target not in targets.fit and self._settler.denial(target[0]) is None
        ]
        if unknown:
            targets.expect(unknown)
