"""Faults that the demo causes: kills, most of them in an open transaction, a freeze, and
a restart.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from connectors.kafka.log_ends import LATEST, offsets_of
from delay_devtools.demo.timeline import Act, Deed, Missed, has_let_go
from delay_devtools.nodes import LocalNode, NodeGroup
from delayservice.base.errors import ClusterError
from delayservice.engine.ports import Place
from delayservice.smoke.progress import Steps

# Fault point (place in the service's code) and action: a worker stops itself with SIGSTOP in an
# open transaction whose outputs are at the broker.
FAULT: Final = "flushed:stop"
_TRANSACTION_S_MAX: Final = 5.0
# Number of attempts to stop a slice's owner in an open transaction. On a busy machine an owner's
# ZooKeeper session of two seconds may end meanwhile, and a node that has lost the slice begins no
# transaction.
_OWNERS_ASKED: Final = 4
# Shortest and longest pause before a fault, in s; the key is whether there are several nodes.
_PAUSE_S: Final = {True: (0.5, 1.5), False: (1.5, 3.5)}
_LOOKS: Final = 4
_BETWEEN_LOOKS_S: Final = 0.05
# Numbers, modulo 5, of the kills that happen in an open transaction; the first kill is 0.
_INSIDE: Final = frozenset({0, 2, 3})

INSIDE: Final = "in an open transaction"
_NO_TRANSACTION: Final = "no transaction came"
_ANY_TIME: Final = "at a random moment"


def script(kills: int, *, has_several: bool) -> list[tuple[Deed, bool]]:
    deeds = [(Deed.KILL, number % 5 in _INSIDE) for number in range(kills)]
    if has_several:
        deeds.insert(1, (Deed.FREEZE, True))
        deeds.insert(3, (Deed.RESTART, False))
    return deeds


class Director:
    """Causes the demo's faults. ``go_on`` sends the next part of the records, ``await_delivered``
    waits until the consumer has received some more. ``missed`` has the faults that failed.
    """

    def __init__(
        self,
        group: NodeGroup,
        admin: AdminClient,
        targets: Sequence[Place],
        go_on: Callable[[], None],
        await_delivered: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._group = group
        self._admin = admin
        self._targets = targets
        self._go_on = go_on
        self._await_delivered = await_delivered
        self._rng = rng
        self.acts: list[Act] = []
        self.missed: list[Missed] = []
        self._deeds = {
            Deed.KILL: self._kill,
            Deed.FREEZE: self._freeze,
            Deed.RESTART: self._restart,
        }

    @property
    def _has_several(self) -> bool:
        return len(self._group.nodes) > 1

    def play(self, deeds: Sequence[tuple[Deed, bool]], steps: Steps) -> None:
        # A fault that fails is added to missed, and the next one is caused, so that the records are
        # checked in any case.
        for number, (deed, is_inside) in enumerate(deeds):
            if number:
                self._go_on()
            time.sleep(self._rng.uniform(*_PAUSE_S[self._has_several]))
            slice_no = number % self._group.slices
            node, how = self._group.owner(slice_no), _ANY_TIME
            if is_inside:
                node, how = self._stop_inside(slice_no)
            with steps.doing(f"{node.node_id} is being {deed}"):
                try:
                    self._deeds[deed](node, how)
                except ClusterError as exc:
                    self.missed.append(Missed(f"{node.node_id} was to be {deed}", str(exc)))
                    self._set_right()

    def stop(self) -> None:
        for node in self._group.nodes.values():
            try:
                node.stop_in_order()
            except ClusterError as exc:
                self.missed.append(Missed(f"{node.node_id} was to be stopped", str(exc)))

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

    def _kill(self, node: LocalNode, how: str) -> None:
        before = self._group.owned_by(node)
        at_ms = _now_ms()
        node.kill()
        held_back = self._held_back()
        if not self._has_several:
            node.start()
        self._group.await_successors(before, [node] if self._has_several else [])
        self._note(Deed.KILL, node, tuple(before), at_ms, how, held_back)
        if self._has_several:
            node.start()
            self._group.await_home()

    def _freeze(self, node: LocalNode, how: str) -> None:
        before = self._group.owned_by(node)
        at_ms = _now_ms()
        node.service.freeze()
        held_back = self._held_back()
        self._group.await_successors(before, [node])
        self._await_delivered()
        woken_ms = _now_ms()
        act = self._note(Deed.FREEZE, node, tuple(before), at_ms, how, held_back, woken_ms)
        node.service.thaw()
        self._group.await_true(
            lambda: has_let_go(node.slice_events(), act),
            f"{node.node_id} was woken and let go of {sorted(before)}",
        )
        self._group.await_home()

    def _restart(self, node: LocalNode, how: str) -> None:
        before = self._group.owned_by(node)
        at_ms = _now_ms()
        node.stop_in_order()
        self._group.await_successors(before, [node])
        self._note(Deed.RESTART, node, tuple(before), at_ms, how, 0)
        node.start()
        self._group.await_home()

    def _note(
        self,
        deed: Deed,
        node: LocalNode,
        slices: tuple[int, ...],
        at_ms: float,
        how: str,
        held_back: int,
        woken_ms: float | None = None,
    ) -> Act:
        owners = self._group.owners()
        served_ms = max((owners[slice_no].from_ms for slice_no in slices), default=at_ms)
        act = Act(deed, node.node_id, slices, at_ms, how, held_back, served_ms, woken_ms)
        self.acts.append(act)
        return act

    # --- uncommitted offsets ---------------------------------------------------------------------

    def _held_back(self) -> int:
        # The least of some readings: transactions of other nodes end between them, while that of a
        # killed or frozen node stays open.
        found = [self._held_back_now()]
        while self._has_several and len(found) < _LOOKS:
            time.sleep(_BETWEEN_LOOKS_S)
            found.append(self._held_back_now())
        return min(found)

    def _held_back_now(self) -> int:
        # In this order: records that are committed between the two queries must not count.
        high = self._ends(IsolationLevel.READ_UNCOMMITTED)
        return max(high - self._ends(IsolationLevel.READ_COMMITTED), 0)

    def _ends(self, isolation: IsolationLevel) -> int:
        return sum(offsets_of(self._admin, self._targets, LATEST, isolation).values())


def _now_ms() -> float:
    return time.time() * 1_000
