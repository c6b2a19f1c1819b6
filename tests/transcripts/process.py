"""One process of a node in virtual time: the real ``ElectedOwnership``, its thread replaced by
turns, over a model of ZooKeeper.

What holds, checked after every event: of all processes that are not dead, at most one would get
the answer OWNER for a slice if its loop asked now, frozen and cut-off ones included. For a process
is told OWNER only after its session was seen to hold the owner node, and the node goes only

- by its own resignation, before which the answer has changed and the loop has stopped;
- with its session, whose lease has ended before, for both count from the last beat or earlier;
- by hand: then the answer is wrong until the watch has come, or for an owner that is out of touch
  until it has looked again, and Kafka's fencing has to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from unittest.mock import patch

from structlog.testing import capture_logs

from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.engine.ports import Role
from ha import elected_ownership
from ha.elected_ownership import ElectedOwnership
from ha.notes import NodeNote
from ha.placement import SliceFacts
from tests.transcripts.model_zookeeper import Link, ModelZooKeeper

ALERT_S = 0.4
_NOT_SHOWN = ("hint", "node")
_TURNS_PER_S_MAX = 200


class _Wake:
    """In place of the event that the thread waits for."""

    def __init__(self, wanted: Callable[[], None]) -> None:
        self._wanted = wanted

    def set(self) -> None:
        """Have a turn soon."""
        self._wanted()


class Process:
    """Ends by ``kill``, or in order once ``ownership.left`` is set. ``rate``: seconds of its boot
    clock in a second.
    """

    def __init__(
        self,
        zookeeper: ModelZooKeeper,
        placement: Placement,
        note: NodeNote,
        *,
        kept: frozenset[int] = frozenset(),
        rate: float = 1.0,
    ) -> None:
        self.events = zookeeper.events
        self.note = note
        self.name = note.node_id
        self.is_dead = self.is_frozen = False
        self.kept: frozenset[int] = frozenset()
        self.link = Link(zookeeper, self._changed)
        self._rate = rate
        self._turn_due_s = math.inf
        self._turns: list[float] = []
        with patch.object(elected_ownership, "Ensemble", lambda *_: self.link):
            self.ownership = ElectedOwnership(
                ZooKeeper(hosts="model:2181"),
                placement,
                note,
                0,
                boot_s=self.boot_s,
                alert_s=ALERT_S,
                kept=kept,
            )
        self.ownership.wake = _Wake(self._turn_soon)  # type: ignore[assignment]
        self.link.connect()

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.is_frozen

    def boot_s(self) -> float:
        """Its clock, which goes on while it is frozen."""
        return self.events.now_s * self._rate

    def is_told_owner(self, slice_no: int) -> bool:
        """Whether its loop would get that answer now."""
        return self.ownership.roles().get(slice_no, Role.REPLICA) is Role.OWNER

    def serve(self, told: Collection[SliceFacts]) -> bool:
        """Tell it which slices exist; return whether it keeps copies of others than before."""
        kept = self.ownership.serve(told)
        hidden = self.kept - {facts.slice_no for facts in told}
        assert hidden <= kept, f"{self.name} forgets {hidden - kept}, of which it heard nothing"
        is_changed, self.kept = kept != self.kept, kept
        return is_changed

    def _changed(self, what: int) -> None:
        self.ownership.changed(what)

    # --- turns of the thread -------------------------------------------------------------------

    def _turn_soon(self) -> None:
        self._turn_at(self.events.now_s + self.events.delay_s("turn"))

    def _turn_at(self, time_s: float) -> None:
        if time_s < self._turn_due_s and not math.isinf(time_s):
            self._turn_due_s = time_s
            self.events.at(time_s, lambda: self._turn(time_s))

    def _turn(self, time_s: float) -> None:
        if time_s != self._turn_due_s or not self.is_running:
            return
        self._turn_due_s = math.inf
        self._count_turn(time_s)
        with capture_logs() as logs:
            self.ownership.turn()
        for facts in logs:
            self._say(**facts)
        self._turn_at(max(time_s + self.ownership.wait_s() / self._rate, time_s + 0.001))
        self._see()

    def _say(self, event: str, log_level: str, **facts: object) -> None:
        """What an operator would read becomes part of the log, without hints."""
        if log_level != "debug":
            shown = (f"{name}={fact}" for name, fact in facts.items() if name not in _NOT_SHOWN)
            self.events.say(self.name, " ".join(("log:", event, *shown)))

    def _see(self) -> None:
        """What the loops do at once when the thread has had a turn."""

    def _count_turn(self, time_s: float) -> None:
        """A thread that spins shows here."""
        self._turns = [*(t for t in self._turns if t > time_s - 1), time_s]
        assert len(self._turns) < _TURNS_PER_S_MAX, f"{self.name} spins at {time_s:.3f}"

    # --- what may happen to it -----------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL."""
        self.is_dead, self.is_frozen = True, False
        self.link.is_alive = self.link.is_connected = False
        self.link.fall_silent()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_frozen = True
        self.link.is_alive = False
        self.link.fall_silent()

    def wake(self) -> None:
        """SIGCONT."""
        self.is_frozen = False
        self.link.is_alive = True
        self.link.speak_again()
        self._see()
        self._turn_due_s = math.inf
        self._turn_soon()

    def cut(self) -> None:
        """Its network to ZooKeeper is gone."""
        self.link.is_cut = True
        self.link.fall_silent()

    def mend(self) -> None:
        """Its network is back."""
        self.link.is_cut = False
        self.link.speak_again()

    def end(self) -> None:
        """It has left, or its time to leave is over."""
        self.is_dead = True
        self.link.close()


def owners_told(processes: Iterable[Process], slice_no: int) -> list[str]:
    """The living processes that would be told that they own a slice."""
    told = (p for p in processes if not p.is_dead and p.is_told_owner(slice_no))
    return [p.note.instance for p in told]
