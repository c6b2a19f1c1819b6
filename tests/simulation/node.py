"""One node: a slice loop with its lanes and stores, life after life."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from delayservice.core.contract import Contract
from delayservice.core.flow import Flow, FlowRules
from delayservice.core.recurrence import CronTime
from delayservice.core.settle import Routes
from delayservice.errors import KafkaEdgeError
from delayservice.lanes.lane import Lane
from delayservice.lanes.slice_loop import Limits, SliceLoop
from delayservice.store.base import Store
from tests.simulation.sim_log import topic_id
from tests.simulation.sim_ports import (
    HELD_MS,
    SimCheckpoints,
    SimClock,
    SimGate,
    SimObserver,
    SimSink,
    SimSource,
)
from tests.simulation.sim_store import SimStore
from tests.simulation.users import MAX_DELAY_MS, TARGETS

if TYPE_CHECKING:
    from tests.simulation.world import World

MakeStore = Callable[[str, str], Store]
"""Node name and topic to a store that survived what came before."""


class SimCrashError(BaseException):
    """The node is gone. Not an Exception, so that nothing in the service can catch it."""


class Node:
    """What survives a crash is ``disks``; everything else is made anew by ``boot``."""

    def __init__(
        self,
        world: World,
        name: str,
        roll_window_ms: int,
        cron_time: CronTime,
        make_store: MakeStore | None,
    ) -> None:
        self.world = world
        self.name = name
        self.wants = True
        self.frozen = False
        self.skew_ms = 0
        self.is_running = False
        self.loop: SliceLoop | None = None
        tidy = world.plan.retention
        self.disks = {t: SimStore(self._rng(), self.point, tidy=tidy) for t in world.plan.topics}
        self.checkpoints = SimCheckpoints(self)
        self.clock = SimClock(self)
        self._source = SimSource(self)
        self._roll_window_ms = roll_window_ms
        self._cron_time = cron_time
        self._make_store = make_store
        self._book = world.book

    def _rng(self) -> Random:
        return Random(self.world.rng.random())

    # --- trouble -------------------------------------------------------------------------------

    def trace(self, text: str) -> None:
        """Note what this node does."""
        self.world.trace(f"{self.name} {text}")

    def point(self, what: str) -> None:
        """Anything may happen here."""
        if not self.world.calm:
            self.world.interfere(self, what)

    def call(self, what: str) -> None:
        """A call to Kafka, which may also fail."""
        self.point(what)
        if self.world.flip(self.world.plan.broken_call):
            self.trace(f"can't {what}")
            raise KafkaEdgeError(f"{what}: broken")

    # --- life ----------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start with what the disks hold."""
        self.trace("boots")
        plan = self.world.plan
        self._source = SimSource(self)
        self.checkpoints = SimCheckpoints(self)
        contract = Contract(
            roll_window_ms=self._roll_window_ms,
            roll_spread_ms=self._roll_window_ms // 8,
            max_delay_ms=MAX_DELAY_MS,
            allow=TARGETS,
        )
        self.loop = SliceLoop(
            0,
            node_id=self.name,
            source=self._source,
            sink=SimSink(self),
            checkpoints=self.checkpoints,
            clock=self.clock,
            gate=SimGate(self),
            observer=SimObserver(),
            routes=self._routes(),
            contract_of=lambda _: contract,
            limits=Limits(
                poll_records=plan.poll_records,
                batch_records=plan.batch_records,
                transaction_records=plan.transaction_records,
                batch_bytes=plan.batch_bytes,
                transaction_interval_ms_min=plan.transaction_interval_ms,
                transaction_interval_ms_max=2 * plan.transaction_interval_ms,
                cursor_interval_ms=plan.cursor_interval_ms,
            ),
            flow=Flow(FlowRules((("*", plan.rate_per_s),) if plan.rate_per_s else ())),
            copies=None if self._book is None else self._book.keeper(self),
            is_held=lambda topic: topic in self.world.paused,
        )
        self._guarded(partial(self._add_lanes, plan.topics))

    def _routes(self) -> Routes:
        window_ms = self._roll_window_ms
        return Routes(
            "delay_dead_letter",
            "delay_outcomes",
            b"secret",
            window_ms,
            window_ms // 8,
            (150, 300),
            self._cron_time,
            held_ms=HELD_MS,
        )

    def _add_lanes(self, topics: tuple[str, ...]) -> None:
        assert self.loop is not None
        self.loop.add_lanes([self._lane(topic) for topic in topics])

    def _lane(self, topic: str) -> Lane:
        assert self.loop is not None
        make = self._make_store
        store = self.disks[topic] if make is None else make(self.name, topic)
        if self._book is not None:
            store = self._book.keep(self, topic, store)
        lane = Lane(topic, 0, topic_id(topic), store, self._source, self._routes(), self.loop.flow)
        lane.shard._queue_max = self.world.plan.queue_max
        return lane

    def step(self, count: int = 1) -> None:
        """Run the loop; boot first if there is none."""
        if self.loop is None:
            self.boot()
        for _ in range(count):
            if self.loop is not None:
                self._guarded(partial(self.loop.step, 0))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do work of this node, as ``SliceThread`` does it; a crash ends this life."""
        self.is_running = True
        try:
            try:
                work()
            except KafkaEdgeError as broken:
                self.trace(f"is interrupted: {broken}")
                assert self.loop is not None
                self.loop.release()
        except SimCrashError:
            self.crash()
        finally:
            self.is_running = False

    def crash(self) -> None:
        """Lose everything but the disks, and some of those."""
        self.trace("crashes")
        self.loop = None
        for disk in self.disks.values():
            if self.world.rng.random() < 0.08:
                disk.wipe()
            else:
                disk.crash()

    def stop(self) -> None:
        """End in good order, and be gone."""
        self.trace("stops")
        if self.loop is not None:
            self._guarded(self.loop.close)
        self.loop = None

    def change_lanes(self) -> None:
        """Stop serving one topic, or serve it again."""
        if self.loop is None:
            return
        topic = self.world.rng.choice(self.world.plan.topics)
        if topic in self.loop.lanes:
            self.trace(f"serves {topic} no longer")
            self._guarded(partial(self.loop.drop_lane, topic))
        else:
            self.trace(f"serves {topic} again")
            self._guarded(partial(self._add_lanes, (topic,)))

    def serve_all(self) -> None:
        """Serve every topic again."""
        if self.loop is not None:
            missing = tuple(t for t in self.world.plan.topics if t not in self.loop.lanes)
            self._guarded(partial(self._add_lanes, missing))
