"""One node: a worker's loop with its slices, lanes, helpers and stores, life after life."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.sink import KafkaSink, WriterOptions
from connectors.kafka.source import KafkaSource
from connectors.kafka.take_over_client import KafkaTakeOverClient
from connectors.kafka.targets import TargetTopics
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.codes import TARGET_DENIED
from delayservice.contract.contracts import CONTRACT_VERSION, Contract
from delayservice.contract.entry import Headers
from delayservice.contract.names import DELAY_ERROR, DELAY_TARGET_TOPIC
from delayservice.contract.recurrence import CronTime
from delayservice.contract.targets import Allowlist
from delayservice.engine.flow import FlowRules
from delayservice.engine.outcome import DEAD_LETTERED, DELIVERED, FIRED, PARKED, Output, Routes
from delayservice.engine.ports import Place, Role
from delayservice.engine.settle import HasTime
from delayservice.slices.edges import Edges, Limits
from delayservice.slices.lane import Lane
from delayservice.slices.log_window import LogWindow
from delayservice.slices.loop import WorkerLoop
from delayservice.slices.slice import Slice
from delayservice.store.base import Store
from tests.simulation.elections import SimProcess
from tests.simulation.history import FICKLE, HELD_MS, ViolationError
from tests.simulation.plan import LEVELS_MS
from tests.simulation.sim_kafka import InOrder, SimKafka
from tests.simulation.sim_log import (
    CHECKPOINT_PARTITIONS,
    CHECKPOINTS,
    CLAIMS,
    OWN_TOPICS,
)
from tests.simulation.sim_ports import Job, SimBackground, SimClock, SimGate, SimObserver, SimWatch
from tests.simulation.sim_store import SimStore
from tests.simulation.users import MAX_DELAY_MS, SLOW, TARGETS

if TYPE_CHECKING:
    from tests.simulation.world import World

MakeStore = Callable[[str, Place], Store]
"""Node name and shard to a store that survived what came before."""

_GOODBYE_TURNS = 8
_LEAVE_TURNS = 40
_LEAVE_TURN_S = 0.01
_CUT_EVERY_MS = 40
_WAITS_MS = (1, 1, 2, 5)


class SimCrashError(BaseException):
    """The node is gone. Not an Exception, so that nothing in the service can catch it."""


class FewLane(Lane):
    """A lane that settles a few records at a time, so that its walks are cut everywhere."""

    few = 50
    few_bytes = 1_000_000

    def settle_late(self, now_ms: int, limit: int, has_time: HasTime) -> list[Output]:
        return super().settle_late(now_ms, min(limit, self.few), has_time)

    def settle_due(
        self, now_ms: int, limit: int, bytes_max: int, has_time: HasTime = lambda: True
    ) -> Iterator[list[Output]]:
        few, few_bytes = min(limit, self.few), min(bytes_max, self.few_bytes)
        yield from super().settle_due(now_ms, few, few_bytes, has_time)


class WatchedSink(KafkaSink):
    """The sink, with points in it, and what the oracle can't see in a topic: what was held back."""

    node: Node

    def _new_name(self) -> str:
        return self.node.world.log.new_writer(self.node.name)

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        node, world = self.node, self.node.world
        node.point("before send")
        world.elections.check_settles(node, place[1])
        for kind, topic, _, _, _, headers, _, offset in outputs:
            node.check_allowed(kind, topic, headers)
            if kind == PARKED and world.plan.pauses:
                world.oracle.held.add((place, offset))
            if kind in (DELIVERED, FIRED) and {topic, place[0]} & world.paused:
                raise ViolationError(f"{offset} of {place} goes to {topic}, and that is paused")
        node.trace(f"sends {[(output[0], output[7]) for output in outputs]} of {place}")
        super().send(place, outputs)
        node.point("after send")


class Node:
    """What survives a crash is ``disks``; everything else is made anew by ``boot``.

    Attributes:
        roles: what it may do with each slice; another mapping as soon as anything changes.
        jobs: what its helper threads have to do, or have done without being heard.
    """

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
        self.roles = dict.fromkeys(range(world.plan.slices), Role.REPLICA)
        self.frozen = False
        self.has_wrong_secret = False
        """In this life; the first owner of a slice has the right one."""
        self.allow: tuple[str, ...] = (*TARGETS, SLOW)
        """What the settings of this life allow."""
        self.skew_ms = 0
        self.version = CONTRACT_VERSION
        """Of the contract, that this life knows."""
        self.id_partitions = 0
        """What the settings of this life say."""
        self.loop: WorkerLoop | None = None
        self.process: SimProcess | None = None
        """This life's, where owners are elected."""
        self.jobs: list[Job] = []
        tidy = world.plan.retention
        self.disks = {p: SimStore(self._rng(), self.point, tidy=tidy) for p in world.precise}
        self._topic_ids: dict[Place, str] = {}
        """Of what the disks hold."""
        self.clock = SimClock(self)
        self._life = 0
        self._frames: list[tuple[int, str]] = []
        self._is_tailing = False
        self._roll_window_ms = roll_window_ms
        self._cron_time = cron_time
        self._make_store = make_store
        self._book = world.book
        self._connect()

    def _connect(self) -> None:
        """Make what one life has of Kafka."""
        kafka = SimKafka(self)
        self.targets = TargetTopics(
            kafka.admin, self.clock.monotonic_s, self.world.why_paused, own=OWN_TOPICS
        )
        options = WriterOptions(
            name_prefix=self.name,
            checkpoint_topic=CHECKPOINTS,
            checkpoint_partitions=CHECKPOINT_PARTITIONS,
            claims_topic=CLAIMS,
            exactly_once=not self.world.plan.at_least_once,
            partitioner="",
            producer={},
            consumer={},
        )
        self.checkpoints = KafkaCheckpoints(
            options,
            SimClock(self),  # its thread's: what the loop has read last is what it goes by
            self.name,
            _CUT_EVERY_MS,
            kafka.clients,
        )
        for number in self.roles:
            self.checkpoints.follow(number)
        self._source = KafkaSource({}, kafka.admin, self.name, clients=kafka.clients)
        self.batches_refused: Counter[str] = Counter()
        """Batches whose records a topic takes one by one only, by topic."""
        self._sink = WatchedSink(options, self.targets, kafka.clients)
        self._sink.node = self
        self._take_over_client = KafkaTakeOverClient(
            options, self.checkpoints, kafka.admin, self._confirm, kafka.clients, InOrder()
        )

    def _confirm(self, slices: Collection[int]) -> frozenset[int]:
        self.call("confirm")
        if self.process is not None:
            return self.process.ownership.confirm_all(slices)
        return frozenset(n for n in slices if self.roles[n] is Role.OWNER)

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
        if self._frames and self._frames[-1][0] != self._life:
            raise SimCrashError  # it went down meanwhile, and nothing of that life goes on

    def call(self, what: str) -> None:
        """A call to the ensemble, which may also fail."""
        self.point(what)
        if self.world.flip(self.world.plan.broken_call):
            self.trace(f"can't {what}")
            raise KafkaEdgeError(f"{what}: broken")

    def wait(self, limit_s: float) -> None:
        """Let one of its threads wait for a moment, while the others and the world go on."""
        self.point("waits")
        world = self.world
        if world.calm:
            world.log.complete_markers()
        if world.calm or world.rng.random() < 0.7:
            self.tail()
        world.pass_time(min(limit_s, world.rng.choice(_WAITS_MS) / 1000))

    def tail(self) -> None:
        """Read back what there is of checkpoints and claims."""
        if not self._is_tailing and not self.is_frozen:
            self._is_tailing = True
            try:
                self.checkpoints.tail(0)
            finally:
                self._is_tailing = False

    def look_up(self) -> None:
        """Look up the targets that are sought."""
        if not self.is_frozen:
            self._guarded(self.targets.look_up, "aside")

    @contextmanager
    def frame(self, kind: str) -> Iterator[None]:
        """Around what runs in this life: the ``loop``, a helper (``aside``), or the ``sink``, which
        the loop leaves alone meanwhile.
        """
        self._frames.append((self._life, kind))
        try:
            yield
        finally:
            self._frames.pop()

    def _is_in(self, *kinds: str) -> bool:
        return any(life == self._life and kind in kinds for life, kind in self._frames)

    @property
    def is_running(self) -> bool:
        """Whether its loop is in the middle of a turn, or could not begin one."""
        return self._is_in("loop", "sink")

    @property
    def is_frozen(self) -> bool:
        """Whether its process stands still."""
        return self.process is not None and self.process.is_frozen

    # --- life ----------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start with what the disks hold."""
        self.trace("boots")
        plan = self.world.plan
        self._life += 1
        self.jobs.clear()
        are_served = all(self.checkpoints.read_back(number) for number in self.roles)
        self.has_wrong_secret = are_served and self.world.flip(plan.wrong_secret)
        no_fickle = self.world.flip(plan.denied)
        self.allow = tuple(t for t in (*TARGETS, SLOW) if not (no_fickle and t == FICKLE))
        self._see_settings()
        self._connect()
        book = self._book
        self.watch = SimWatch(self)
        if plan.elected:
            self.process = self.world.elections.start(self)
        edges = Edges(
            node_id=self.name,
            source=self._source,
            sink=self._sink,
            checkpoints=self.checkpoints,
            take_over_client=self._take_over_client,
            background=SimBackground(self, "aside"),
            reading=SimBackground(self, "aside"),
            writing=SimBackground(self, "sink"),
            clock=self.clock,
            gate=self.process or SimGate(self),
            clock_watch=self.watch,
            observer=SimObserver(),
            routes=self._routes(),
            contract_of=self._contract_of,
            partitions_of=(
                self._partitions_of if plan.counted and self.id_partitions == plan.homes else None
            ),
            limits=Limits(
                poll_records=plan.poll_records,
                transaction_records=plan.transaction_records,
                transaction_interval_ms_min=plan.transaction_interval_ms,
                transaction_interval_ms_max=2 * plan.transaction_interval_ms,
                visible_at_commit=not plan.settles_early,
                cursor_interval_ms=plan.cursor_interval_ms,
                follow_s=0.0,
                tend_s=0.0,
                rest_s=plan.rest_ms / 1000,
            ),
            flow_rules=lambda: FlowRules((("*", plan.rate_per_s),) if plan.rate_per_s else ()),
            copies_of=lambda number: None if book is None else book.keeper(self, number),
            is_held=lambda topic: topic in self.world.paused,
        )
        self.loop = WorkerLoop(edges)
        self._guarded(partial(self._add_lanes, self._missing))

    def _see_settings(self) -> None:
        world, plan = self.world, self.world.plan
        if not plan.homes:
            return
        self.version = world.newest_version
        self.id_partitions = plan.homes if world.homes_are_on else 0
        if world.flip(plan.other_homes) and world.oracle.have_homes:
            self.id_partitions = world.rng.choice((0, 1, plan.homes + 1))

    @property
    def is_stale(self) -> bool:
        """Whether it was started with settings, or by a version, that is not the last."""
        plan = self.world.plan
        wanted = plan.homes if self.world.homes_are_on else 0
        is_old = self.version < self.world.newest_version
        return self.loop is not None and (is_old or self.id_partitions != wanted)

    def _contract_of(self, topic: str, version_max: int) -> Contract:
        is_precise = topic not in LEVELS_MS
        has_homes = is_precise and version_max >= self.world.homes_since
        return Contract(
            version_max,
            id_partitions=self.id_partitions if has_homes else 0,
            roll_window_ms=self._roll_window_ms,
            roll_spread_ms=self._roll_window_ms // 8,
            max_delay_ms=MAX_DELAY_MS,
            level_ms=LEVELS_MS.get(topic, 0),
        )

    def _partitions_of(self, topic: str) -> int:
        """As many as at first until they have been counted: a schedule has one number."""
        is_counted = any(said[3] for said in self.world.oracle.shards[topic, 0].contracts)
        return self.world.log.topics[topic].partitions if is_counted else self.world.plan.homes

    def _routes(self) -> Routes:
        window_ms = self._roll_window_ms
        return Routes(
            *OWN_TOPICS,
            b"wrong" if self.has_wrong_secret else b"secret",
            window_ms,
            window_ms // 8,
            (150, 300),
            self._cron_time,
            held_ms=HELD_MS,
            allowlist=lambda topic: Allowlist(topic, self.allow),
        )

    def check_allowed(self, kind: int, topic: str, headers: Headers) -> None:
        """Nothing goes where the settings do not allow it, and nothing else is denied."""
        said = dict(headers)
        if kind in (DELIVERED, FIRED) and topic not in (*self.allow, *OWN_TOPICS):
            raise ViolationError(f"a record goes to {topic}, which {self.name} does not allow")
        target = (said.get(DELAY_TARGET_TOPIC) or b"").decode()
        is_denied = kind == DEAD_LETTERED and said[DELAY_ERROR] == TARGET_DENIED.encode()
        if is_denied and target in self.allow:
            raise ViolationError(f"{self.name} denies {target}, which it allows")

    def _add_lanes(self, places: Iterable[Place]) -> None:
        assert self.loop is not None
        lanes: dict[int, list[Lane]] = {}
        for place in places:
            lanes.setdefault(place[1], []).append(self._lane(place))
        for number, added in lanes.items():
            self.loop.add_lanes(number, added)

    def _lane(self, place: Place) -> Lane:
        assert self.loop is not None
        (topic, number), plan = place, self.world.plan
        slice_ = self.loop.slices.get(number) or self.loop.add_slice(number)
        is_level, topic_id = topic in LEVELS_MS, self.world.log.topics[topic].topic_id
        store = self._window(slice_) if is_level else self._store(place, topic_id)
        lane = (Lane if is_level else FewLane)(
            topic,
            number,
            topic_id,
            store,
            self._source,
            self._routes(),
            self.targets,
            slice_.flow,
        )
        if isinstance(lane, FewLane):
            lane.few, lane.few_bytes = plan.batch_records, plan.batch_bytes
            lane.shard._queue_max = plan.queue_max
        return lane

    def _window(self, slice_: Slice) -> LogWindow:
        plan, lanes = self.world.plan, slice_.lanes

        def precise() -> str | None:
            return next((name for name in plan.topics if name in lanes), None)

        return LogWindow(plan.queue_max, plan.batch_bytes, precise)

    def _store(self, place: Place, topic_id: str) -> Store:
        if self._topic_ids.get(place, topic_id) != topic_id:
            self.disks[place] = SimStore(self._rng(), self.point, tidy=self.world.plan.retention)
        self._topic_ids[place] = topic_id
        store: Store = self.disks[place]
        if self._make_store is not None:
            store = self._make_store(self.name, place)
        return store if self._book is None else self._book.keep(self, place, store)

    def step(self, count: int = 1) -> None:
        """Run the loop; boot first if there is none."""
        if self.is_frozen:
            return
        if self.loop is None:
            self.boot()
        world = self.world
        for _ in range(count):
            if world.calm or world.rng.random() < 0.4:
                self.tail()
            if world.calm or world.rng.random() < 0.4:
                self.look_up()
            if self.loop is not None:
                self._guarded(self._turn)

    def _turn(self) -> None:
        process, loop = self.process, self.loop
        assert loop is not None
        if process is not None:
            process.begin_turn()
            self._serve_kept(process.kept)
        loop.step()
        if process is not None:
            process.report()

    def _serve_kept(self, kept: frozenset[int]) -> None:
        """Keep copies where the placement says, as the worker's thread does."""
        assert self.loop is not None
        for number in self.loop.slices.keys() - kept:
            if self.loop.drop_slice(number):
                for place in self.world.precise:
                    if place[1] == number:
                        self.disks[place].wipe()
        self._add_lanes(self._missing)

    def run_job(self, job: Job) -> None:
        """Let a helper get on with what it has to do."""
        if job.is_running or job not in self.jobs or self.is_frozen:
            return
        if job.is_answered:
            job.tell()
            return
        self._guarded(job.run, "aside")

    def takes_over_by(self, job: Job) -> bool:
        return self.loop is not None and job.future in self.loop.state.take_overs

    def finish(self, job: Job) -> None:
        """Let a helper do what it has to do, and be heard."""
        self.run_job(job)
        if job.is_answered:
            self.run_job(job)

    def _guarded(self, work: Callable[[], object], kind: str = "loop") -> None:
        """Do work of this node; a crash ends this life."""
        life = self._life
        try:
            with self.frame(kind):
                work()
        except SimCrashError:
            if life == self._life:
                self.crash()

    def crash(self) -> None:
        """Lose everything but the disks, and some of those. What was sent to Kafka was sent."""
        self.trace("crashes")
        if self.process is not None:
            self.process.kill()
            if self.world.rng.random() < 0.5:
                self.process.link.end_session()
        self._life += 1
        self.loop = None
        self.jobs.clear()
        for disk in self.disks.values():
            if self.world.rng.random() < 0.08 and not self.world.has_broken_down:
                disk.wipe()
            else:
                disk.crash()

    def stop(self) -> None:
        """End in good order, and be gone."""
        if self.is_frozen:
            return
        self.trace("stops")
        self._leave()
        for _ in range(_GOODBYE_TURNS):
            if self.loop is None or not self.loop.is_settling:
                break
            self._guarded(self.loop.release_all)
            self.step()
            for job in list(self.jobs):
                self.finish(job)
        if self.loop is not None:
            self._guarded(self.loop.close)
        if self.process is not None and not self.process.is_dead:
            self.process.end()
        self._life += 1
        self.loop = None
        self.jobs.clear()

    def _leave(self) -> None:
        """Hand over, where owners are elected."""
        process = self.process
        if process is None or self.loop is None:
            return
        process.ownership.leaving.set()
        process.ownership.wake.set()
        for _ in range(_LEAVE_TURNS):
            if process.ownership.left.is_set() or process.is_dead:
                break
            self.world.pass_time(_LEAVE_TURN_S)
            self.step()
            for job in list(self.jobs):
                self.finish(job)

    # --- what it is to do ----------------------------------------------------------------------

    def set_role(self, number: int, role: Role) -> None:
        """Be something else to a slice."""
        if self.roles[number] is not role:
            self.trace(f"is {role.value} of slice {number}")
            self.roles = self.roles | {number: role}

    def slice_of(self, number: int) -> Slice | None:
        """How its loop sees a slice."""
        return None if self.loop is None else self.loop.slices.get(number)

    def sync(self) -> None:
        """Make durable what its loop has stored."""
        for place in self.served:
            if place in self.disks:  # a level topic has none
                self.disks[place].sync()

    def stored(self, place: Place) -> int:
        """S of a shard that has a store here."""
        if self.loop is None:
            return self.disks[place].open()
        return self.loop.slices[place[1]].lanes[place[0]].shard.stored

    @property
    def served(self) -> list[Place]:
        """The shards that it keeps."""
        slices = () if self.loop is None else self.loop.slices.values()
        return [place for slice_ in slices for place in slice_.places]

    def change_lanes(self) -> None:
        """Stop serving a topic of a slice, or a whole slice, or serve it again."""
        if self.loop is None:
            return
        place = self.world.rng.choice(self.world.places)
        topic, number = place
        if place not in self.served:
            self.trace(f"serves {place} again")
            self._guarded(partial(self._add_lanes, [place]))
        elif self.world.rng.random() < 0.3:
            self.trace(f"is to serve slice {number} no longer")
            self._guarded(partial(self.loop.drop_slice, number))
        else:
            self.trace(f"serves {place} no longer")
            self._guarded(partial(self.loop.drop_lane, number, topic))

    def see_topics(self) -> None:
        """See which topics were made anew, and serve those; as a worker's thread does, between two
        turns.
        """
        if not self.world.plan.recreates or self.loop is None or self.is_running:
            return
        for place in self.served:
            if place not in self.served:  # it crashed meanwhile
                return
            lane = self.loop.slices[place[1]].lanes[place[0]]
            if lane.topic_id != self.world.log.topics[place[0]].topic_id:
                self.trace(f"drops {place}, which was made anew")
                self._guarded(partial(self.loop.drop_lane, place[1], place[0]))
        self.serve_all()

    def serve_all(self) -> None:
        """Serve every topic of every slice again."""
        if self.loop is not None:
            self._guarded(partial(self._add_lanes, self._missing))

    @property
    def _missing(self) -> list[Place]:
        """The shards that it does not serve, and should."""
        kept = self.roles.keys() if self.process is None else self.process.kept
        served = self.served
        return [p for p in self.world.places if p[1] in kept and p not in served]
