"""The world of one schedule: a log, two nodes, users, time, and a scheduler driven by the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.calendar import SHIFTS_MS, make_calendar
from tests.simulation.history import COPY, ViolationError
from tests.simulation.node import MakeStore, Node, SimCrashError
from tests.simulation.oracle import Oracle
from tests.simulation.plan import Plan
from tests.simulation.sim_digests import DigestBook
from tests.simulation.sim_log import SimLog
from tests.simulation.users import TARGETS, TOO_LARGE, Users

START_MS = 1_700_000_000_000
STEPS_MS = (1, 1, 2, 5, 10, 30, 60, 100, 400)
LEAPS_MS = (300, 900, 1_000, 2_300)
DRAIN_TURNS = 500


class World:
    """Everything there is, and what happens next."""

    def __init__(
        self,
        seed: int,
        plan: Plan,
        tell: Callable[[str], None] | None = None,
        make_store: MakeStore | None = None,
        book: DigestBook | None = None,
    ) -> None:
        """``tell`` is given each line of the trace; ``book`` collects digests, None: nobody keeps
        any.
        """
        self.book = book
        self.rng = Random(seed)
        self.plan = plan
        self.now_ms = START_MS
        self.elapsed_ms = 0
        self.calm = False
        self.targets_down: set[str] = set()
        self.paused: set[str] = set()
        """Targets and delay topics."""
        self.tell = tell
        self.oracle = Oracle(plan.topics, self._last_stable)
        self.log = SimLog(self.oracle.service_committed)
        windows = (plan.roll_window_ms, plan.other_roll_window_ms or plan.roll_window_ms)
        self.nodes = [
            Node(self, name, window, make_calendar(shift_ms), make_store)
            for name, window, shift_ms in zip("AB", windows, SHIFTS_MS, strict=True)
        ]
        self.users = Users(self)

    def _last_stable(self, topic: str) -> int:
        """As of the moment before the transaction that is being decided."""
        partition = self.log.partition(topic)
        current = self.log.current
        own = -1 if current is None else current.number
        others = [o for number, o in partition.pinning.items() if number != own]
        return min(others, default=partition.end)

    def trace(self, text: str) -> None:
        """One line of what happens."""
        if self.tell is not None:
            self.tell(f"{self.now_ms - START_MS:>7} {text}")

    def flip(self, odds: float) -> bool:
        """Whether trouble of these odds comes now."""
        return not self.calm and odds > 0 and self.rng.random() < odds

    @staticmethod
    def is_refused(value: bytes | None) -> bool:
        """Whether the broker takes a record with this value for too large."""
        return value is not None and value.startswith(TOO_LARGE)

    # --- trouble -------------------------------------------------------------------------------

    def interfere(self, node: Node, what: str) -> None:
        """What comes between two effects of a node."""
        plan, rng = self.plan, self.rng
        if rng.random() < plan.tick:
            self._tick(rng.choice(STEPS_MS[:5]))
        if rng.random() < plan.append:
            self.users.write_one()
        if rng.random() < plan.other_node:
            other = self.nodes[1 - self.nodes.index(node)]
            if not other.is_running:
                self.trace(f"({node.name} is at: {what})")
                other.step(rng.choice((1, 1, 2, 4)))
        if rng.random() < plan.crash * 0.3:
            self.trace(f"({node.name} is at: {what})")
            raise SimCrashError
        if rng.random() < 0.1:
            self._background()
        if rng.random() < 0.02:
            self._step_clock(node)

    def _tick(self, ms: int) -> None:
        self.now_ms += ms
        self.elapsed_ms += ms

    def _background(self) -> None:
        """What Kafka and its users do meanwhile."""
        log, rng = self.log, self.rng
        choice = rng.randrange(5)
        if choice == 0 and log.marking:
            log.mark_one()
        elif choice == 1 and self.flip(self.plan.foreign_ends):
            self.users.end_transaction()
        elif choice == 2 and log.current is not None and log.current.in_doubt:
            self.trace("the commit in doubt arrives late")
            log.decide(log.current, commit=True, lazy_markers=self.plan.lazy_markers)
        elif choice == 3:
            rng.choice(self.nodes).checkpoints.tail()
        elif choice == 4:
            self._step_clock(rng.choice(self.nodes))

    def _act(self) -> None:
        """One thing at the top of the schedule."""
        rng, plan = self.rng, self.plan
        node = rng.choice(self.nodes)
        choice = rng.random()
        if choice < 0.5:
            node.step(rng.choice((1, 2, 3)))
        elif choice < 0.65:
            self.users.write_one()
        elif choice < 0.78:
            self._tick(rng.choice(LEAPS_MS if rng.random() < plan.periods / 2 else STEPS_MS))
        elif choice < 0.86:
            self._background()
        elif choice < 0.90:
            node.wants = rng.random() < 0.6
            self.trace(f"{node.name} {'is to own' if node.wants else 'is not to own'} the slice")
        elif choice < 0.93 and plan.crash:
            node.crash()
        elif choice < 0.935:
            node.stop()
        else:
            self._upset(node)

    def _upset(self, node: Node) -> None:
        """The rarer troubles, each where its plan has it."""
        rng, plan = self.rng, self.plan
        if rng.random() < 0.5:
            self._step_clock(node)
        if plan.targets_fail and rng.random() < 0.5:
            self.targets_down ^= {rng.choice(TARGETS)}
            self.trace(f"targets down: {sorted(self.targets_down)}")
        if plan.pauses and rng.random() < 0.5:
            self.paused ^= {rng.choice((*TARGETS, *TARGETS, *plan.topics))}
            self.trace(f"paused: {sorted(self.paused)}")
        if plan.slots_fail and rng.random() < 0.7 and not node.is_running:
            self.trace(f"{node.name} loses a slot")
            node.disks[rng.choice(plan.topics)].lose_slot()
        if plan.retention and rng.random() < 0.5:
            self._expire(rng.choice(plan.topics))
        if plan.lanes_change and rng.random() < 0.6:
            node.change_lanes()
        if rng.random() < 0.1:
            node.frozen = not node.frozen

    def _step_clock(self, node: Node) -> None:
        if self.plan.clock_back:
            node.skew_ms = self.rng.choice((-50, -20, -3, 0, 3, 20, 50))
            self.trace(f"{node.name}'s clock is {node.skew_ms} ms ahead")

    def _expire(self, topic: str) -> None:
        """Retention is longer than the roll window: it deletes what is settled, but no canceller
        of a copy whose time has not come, or that H has not passed: it was written moments after.
        """
        shard, partition = self.oracle.shards[topic], self.log.partition(topic)
        pending = [o for o, record in shard.placed.items() if not record.outcome]
        cancellers = [
            shard.canceller_of(record)
            for record in shard.placed.values()
            if record.op == COPY and (shard.key_of(record) > shard.key or record.offset >= shard.h)
        ]
        stop = min([*pending, shard.h, *(by for by in cancellers if by is not None)])
        partition.start = max(partition.start, self.rng.randint(0, stop))
        self.trace(f"{topic} now starts at {partition.start}")

    # --- course --------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole schedule: trouble, then calm until all is settled, then proof that it stays so.

        Raises:
            ViolationError: a promise was broken.
        """
        for _ in range(self.plan.actions):
            self._act()
        self._heal()
        owner = self.rng.choice(self.nodes)
        self._drain(owner)
        self.oracle.check_chains()
        heir = self.nodes[1 - self.nodes.index(owner)]
        if self.rng.random() < 0.5:
            for disk in heir.disks.values():
                disk.wipe()
            heir.loop = None
        owner.wants, heir.wants = False, True
        for _ in range(12):
            self._tick(1_000)
            self._turn()
        self.oracle.check_chains()

    def _heal(self) -> None:
        self.trace("--- all trouble ends")
        self.calm = True
        self.targets_down.clear()
        self.paused.clear()
        self.users.write_all()
        for node in self.nodes:
            node.skew_ms = 0
            node.frozen = False
            node.serve_all()

    def _drain(self, owner: Node) -> None:
        for node in self.nodes:
            node.wants = node is owner
        for turn in range(DRAIN_TURNS):
            if self.oracle.is_drained:
                return
            self._tick(20 if turn < 50 else 200)
            self._turn()
        raise ViolationError(f"never settled: {self.oracle.pending()}")

    def _turn(self) -> None:
        self.log.complete_markers()
        for node in self.nodes:
            node.checkpoints.tail()
            node.step()
