"""Faults that the demo causes: kills, most of them in an open transaction, a freeze, and
a restart.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from delay_devtools.demo.timeline import INSIDE, Act, Deed, has_let_go
from delay_devtools.nodes import LocalNode, NodeGroup
from delayservice.base.errors import ClusterError
from delayservice.smoke.helper import Helper
from delayservice.smoke.progress import Steps

# Fault point (place in the service's code) and action: a worker stops itself with SIGSTOP in an
# open transaction whose outputs are at the broker.
FAULT: Final = "flushed:stop"
_SEED: Final = 20_260_101
# Number of records that successors deliver before a frozen node is resumed.
_DELIVERED: Final = 500
_TRANSACTION_S_MAX: Final = 5.0
# Number of attempts to stop a slice's owner in an open transaction. On a busy machine an owner's
# ZooKeeper session of two seconds may end meanwhile, and a node that has lost the slice begins no
# transaction.
_OWNERS_ASKED: Final = 4
# Shortest and longest pause before a fault, in s; the key is whether there are several nodes.
_PAUSE_S: Final = {True: (0.5, 1.5), False: (1.5, 3.5)}
# Numbers, modulo 5, of the kills that happen in an open transaction; the first kill is 0.
_INSIDE: Final = frozenset({0, 2, 3})

_NO_TRANSACTION: Final = "no transaction came"
_ANY_TIME: Final = "at a random moment"


def script(kills: int, *, has_several: bool) -> list[tuple[Deed, bool]]:
    deeds = [(Deed.KILL, number % 5 in _INSIDE) for number in range(kills)]
    if has_several:
        deeds.insert(1, (Deed.FREEZE, True))
        deeds.insert(3, (Deed.RESTART, False))
    return deeds


class Director:
    """Causes the demo's faults at the owners of slices; ``missed`` has those that failed."""

    def __init__(self, group: NodeGroup) -> None:
        self._group = group
        self._has_several = len(group.nodes) > 1
        self._rng = random.Random(_SEED)  # noqa: S311  # kill times that replay from a seed
        self.acts: list[Act] = []
        self.missed: list[str] = []

    def play(
        self, deeds: Sequence[tuple[Deed, bool]], steps: Steps, load_: Helper, judge_: Helper
    ) -> None:
        # A fault that fails is added to missed, and the next one is caused, so that the records are
        # checked in any case.
        for number, (deed, is_inside) in enumerate(deeds):
            if number:
                load_.tell()  # each fault has its part of the records
            time.sleep(self._rng.uniform(*_PAUSE_S[self._has_several]))
            slice_no = number % self._group.slices
            node, how = self._group.owner(slice_no), _ANY_TIME
            if is_inside:
                node, how = self._stop_inside(slice_no)
            with steps.doing(f"{node.node_id} is being {deed}"):
                try:
                    self._cause(deed, node, how, load_, judge_)
                except ClusterError as exc:
                    self.missed.append(f"{node.node_id} was to be {deed}: {exc}")
                    self._set_right()

    def stop(self) -> None:
        for node in self._group.nodes.values():
            try:
                node.stop_in_order()
            except ClusterError as exc:
                self.missed.append(f"{node.node_id} was to be stopped: {exc}")

    def _stop_inside(self, slice_no: int) -> tuple[LocalNode, str]:
        for _ in range(_OWNERS_ASKED):
            node = self._group.owner(slice_no)
            if node.spring(_TRANSACTION_S_MAX):
                return node, INSIDE
        return node, _NO_TRANSACTION

    def _set_right(self) -> None:
        for node in self._group.nodes.values():
            if node.running:
                node.service.thaw()
            else:
                node.start()

    def _cause(self, deed: Deed, node: LocalNode, how: str, load_: Helper, judge_: Helper) -> None:
        group, before, at_ms = self._group, self._group.owned_by(node), _now_ms()
        causes = {
            Deed.KILL: node.kill,
            Deed.FREEZE: node.service.freeze,
            Deed.RESTART: node.stop_in_order,
        }
        causes[deed]()
        if not self._has_several:
            node.start()
        group.await_successors(before, [node] if self._has_several else [])
        if deed is Deed.FREEZE:
            enough = judge_.count + _DELIVERED
            group.await_true(
                lambda: judge_.count >= min(enough, load_.count), "the successors deliver"
            )
        owners = group.owners()
        served_ms = max((owners[slice_no].from_ms for slice_no in before), default=at_ms)
        woken_ms = _now_ms() if deed is Deed.FREEZE else None
        act = Act(deed, node.node_id, tuple(before), at_ms, how, served_ms, woken_ms)
        self.acts.append(act)
        if deed is Deed.FREEZE:
            node.service.thaw()
            group.await_true(
                lambda: has_let_go(node.slice_events(), act),
                f"{node.node_id} was woken and let go of {sorted(before)}",
            )
        elif self._has_several:
            node.start()
        if self._has_several:
            group.await_home()


def _now_ms() -> float:
    return time.time() * 1_000
