"""The world of one schedule: a log, nodes, users, time, and a scheduler driven by the seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from unittest.mock import patch

from delayservice.contract.contracts import CONTRACT_VERSION, PARAMETERS
from delayservice.engine.ports import Place, Role
from delayservice.slices.slice import Phase
from tests.simulation.calendar import SHIFTS_MS, make_calendar
from tests.simulation.elections import ELECTION_RATE, Elections, SimEvents
from tests.simulation.history import COPY, ViolationError
from tests.simulation.node import MakeStore, Node, SimCrashError
from tests.simulation.oracle import Oracle
from tests.simulation.plan import Plan
from tests.simulation.sim_digests import DigestBook
from tests.simulation.sim_log import (
    CHECKPOINT_PARTITIONS,
    CHECKPOINTS,
    CLAIMS,
    COMPACTED,
    OWN_TOPICS,
    SimLog,
    Topic,
    Transaction,
)
from tests.simulation.sim_ports import Job
from tests.simulation.strangers import Strangers
from tests.simulation.users import BATCH_BYTES_MAX, SLOW, TARGET_PARTITIONS, TARGETS, Users

START_MS = 1_700_000_000_000
STEPS_MS = (1, 1, 2, 5, 10, 30, 60, 100, 400)
LEAPS_MS = (300, 900, 1_000, 2_300)
DRAIN_TURNS = 500
TAKE_OVER_TURNS = 1_200
"""Of 5 ms: longer than a node rests that has lost several writers."""
LOAD_TURNS = 80
LATE_MS_MAX = 600
"""Of a record while all is well, apart from some intervals between commits."""
_READ_TURNS = 30
TURNS_MAX = 30
"""Turns that nodes may take within one another, before the schedule goes on."""


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
        self.events = SimEvents(self)
        self.calm = False
        self.paused: set[str] = set()
        """Targets and delay topics."""
        self.late = self.rng.randrange(plan.slices)
        """The slice that waits at last, where one does."""
        self.unelected: set[str] = {SLOW} if plan.stuck == "asked" else set()
        """Topics of which the cluster says only that they have no leader yet."""
        self.holds_helpers = False
        """Whether helpers begin nothing at once, in calm times either."""
        self.has_broken_down = False
        self._turns_left = 0
        self.unanswered: list[Job] = []
        """What helpers will not get on with."""
        self.tell = tell
        self.precise: list[Place] = [(t, n) for t in plan.topics for n in range(plan.slices)]
        """The shards that have a store."""
        self.places = [*self.precise, *((t, n) for t in plan.levels for n in range(plan.slices))]
        windows = (plan.roll_window_ms, plan.other_roll_window_ms or plan.roll_window_ms)
        self.homes_are_on = bool(plan.homes and not plan.homes_late)
        """By the settings that a node is started with."""
        self.newest_version = CONTRACT_VERSION
        """Of contracts, that a node knows which is started now."""
        self.homes_since = CONTRACT_VERSION + plan.old_versions
        """Contract version that has homes."""
        self.oracle = Oracle(
            self.places,
            self._last_stable,
            set(windows),
            plan.homes,
            self.version_known,
            lambda slice_no: self.elections.zookeeper.epochs.get(slice_no, 0),
        )
        self.log = SimLog(self.oracle.service_committed)
        self._make_topics()
        self.nodes = [
            Node(self, name, windows[n % 2], make_calendar(SHIFTS_MS[n % 2]), make_store)
            for n, name in enumerate("ABC"[: plan.nodes])
        ]
        self.users = Users(self)
        self.strangers = Strangers(self)
        self.elections = Elections(self)
        for number in range(0 if plan.elected else plan.slices):
            for n, node in enumerate(self.nodes):
                if n == number % plan.nodes or self.rng.random() < plan.rivals:
                    node.set_role(number, Role.OWNER)

    def _make_topics(self) -> None:
        for topic in (*self.plan.topics, *self.plan.levels):
            made = self.log.make_topic(topic, self.plan.partitions or self.plan.slices)
            if self.plan.large and topic in self.plan.topics:
                made.bytes_max = BATCH_BYTES_MAX
        for topic in (*TARGETS, SLOW):
            made = self.log.make_topic(topic, TARGET_PARTITIONS)
            if self.plan.targets_fail:
                made.bytes_max = BATCH_BYTES_MAX
        self.log.make_topic(CHECKPOINTS, CHECKPOINT_PARTITIONS)
        for topic in (CLAIMS, *OWN_TOPICS):
            self.log.make_topic(topic, 1)

    def _last_stable(self, place: Place, own: Transaction) -> int:
        """As of the moment before the transaction that is being decided."""
        partition = self.log.partition(place)
        others = [o for number, o in partition.pinning.items() if number != own.number]
        return min(others, default=partition.end)

    @property
    def elapsed_ms(self) -> int:
        """Since the schedule began."""
        return round(self.events.now_s * 1000 / ELECTION_RATE)

    @property
    def now_ms(self) -> int:
        """By a clock that is right."""
        return START_MS + self.elapsed_ms

    def trace(self, text: str) -> None:
        """One line of what happens."""
        if self.tell is not None:
            self.tell(f"{self.now_ms - START_MS:>7} {text}")

    def flip(self, odds: float) -> bool:
        """Whether trouble of these odds comes now."""
        return not self.calm and odds > 0 and self.rng.random() < odds

    def is_late(self) -> bool:
        """Whether a helper takes its time now."""
        return self.holds_helpers if self.calm else self.rng.random() < self.plan.late

    def why_paused(self, topic: str) -> str | None:
        """Why nothing is to be delivered to a topic; None: it is."""
        is_target = topic not in self.plan.topics
        return "somebody said so" if is_target and topic in self.paused else None

    @property
    def open_places(self) -> list[Place]:
        """Where users can write."""
        if not self.plan.homes:
            return self.places
        topics = self.log.topics
        return [p for p in self.places if _takes_records(topics[p[0]], p[1])] or self.places[:1]

    def version_known(self) -> int:
        """The newest version of the contract that all nodes know."""
        return min(node.version for node in self.nodes)

    def pass_time(self, seconds: float) -> None:
        """Somebody waits for so long."""
        self._tick(max(round(seconds * 1000), 1))

    # --- trouble -------------------------------------------------------------------------------

    def interfere(self, node: Node, what: str) -> None:
        """What comes between two effects of a node."""
        plan, rng = self.plan, self.rng
        if rng.random() < plan.tick:
            self._tick(rng.choice(STEPS_MS[:5]))
        if rng.random() < plan.append:
            self.users.write_one()
        if self._turns_left > 0 and rng.random() < plan.other_node:
            other = rng.choice([n for n in self.nodes if n is not node])
            self.trace(f"({node.name} is at: {what})")
            self.let(other, rng.choice((1, 1, 2, 4, 8)))
        if self._turns_left > 0 and rng.random() < plan.helper:
            self.trace(f"({node.name} is at: {what})")
            self.let(node, 1)
        if plan.elected and rng.random() < plan.stands_still and self._turns_left > 0:
            self.elections.stand_still(node)
        if rng.random() < plan.crash * 0.3:
            self.trace(f"({node.name} is at: {what})")
            raise SimCrashError
        if rng.random() < 0.1:
            self._background()
        if rng.random() < 0.02:
            self._step_clock(node)

    def let(self, node: Node, turns: int) -> None:
        """A node gets on, or its helpers do."""
        for _ in range(turns):
            self._turns_left -= 1
            if node.jobs and (node.is_running or self.rng.random() < 0.6):
                node.run_job(self.rng.choice(node.jobs))
            elif not node.is_running:
                node.step()

    def _tick(self, ms: int) -> None:
        self.events.run(self.events.now_s + ms * ELECTION_RATE / 1000)

    def _background(self) -> None:
        """What Kafka, its users and other threads do meanwhile."""
        log, rng = self.log, self.rng
        choice = rng.randrange(8)
        if choice == 0:
            log.mark_one()
        elif choice == 1 and self.flip(self.plan.foreign_ends):
            self.users.end_transaction()
        elif choice == 2:
            self._commit_late()
        elif choice == 3:
            rng.choice(self.nodes).tail()
        elif choice == 4:
            self._step_clock(rng.choice(self.nodes))
        elif choice == 5:
            self._coordinate()
        elif choice == 6:
            node = rng.choice(self.nodes)
            node.look_up()
            node.see_topics()
        else:
            self._spoil_own_topics()

    def _spoil_own_topics(self) -> None:
        log, rng = self.log, self.rng
        if self.flip(self.plan.intruder):
            self.strangers.intrude()
        if rng.random() < 0.3:
            for place in COMPACTED:
                stable = log.partition(place).last_stable
                log.compact(place, rng.choice((stable, rng.randint(0, stable))))

    def _commit_late(self) -> None:
        """The end of a transaction arrives, of the one that it was meant for or of the next one."""
        log = self.log
        late = [t for t in log.open.values() if t.in_doubt or t.writer in log.repeated]
        if late:
            transaction = self.rng.choice(late)
            commit = log.repeated.pop(transaction.writer, True) or transaction.in_doubt
            self.trace(f"{'a commit' if commit else 'an abort'} arrives late")
            log.decide(transaction, commit=commit, lazy_markers=self.plan.lazy_markers)

    def _coordinate(self) -> None:
        """The coordinator gives up a writer that takes too long, or forgets one that is idle."""
        log, rng = self.log, self.rng
        idle = [writer for writer in log.epochs if writer not in log.open]
        if log.open and self.flip(self.plan.give_up):
            writer = rng.choice(list(log.open))
            self.trace(f"the coordinator gives {writer} up")
            log.give_up(writer)
        elif idle and self.flip(self.plan.forgets):
            writer = rng.choice(idle)
            self.trace(f"the coordinator forgets {writer}")
            log.forget(writer)

    def _act(self) -> None:
        """One thing at the top of the schedule."""
        self._turns_left = TURNS_MAX
        rng, plan = self.rng, self.plan
        node = rng.choice(self.nodes)
        choice = rng.random()
        if plan.homes:
            self._change_homes()
        if rng.random() < plan.moves:
            (self.elections.strike if plan.elected else self._change_roles)(node)
        elif choice < 0.5:
            self.let(node, rng.choice((1, 2, 3, 5)))
        elif choice < 0.65:
            self.users.write_one()
        elif choice < 0.78:
            self._tick(rng.choice(LEAPS_MS if rng.random() < plan.periods / 2 else STEPS_MS))
        elif choice < 0.90:
            self._background()
        elif choice < 0.93 and plan.crash:
            node.crash()
        elif choice < 0.935:
            node.stop()
        else:
            self._upset(node)

    def _change_homes(self) -> None:
        """A home can't be written to, or can again; nodes are started with other settings, or
        another version.
        """
        rng, plan = self.rng, self.plan
        if rng.random() < plan.away:
            self._spoil_home(self.log.topics[rng.choice(plan.topics)])
        stale = [node for node in self.nodes if node.is_stale and not node.is_running]
        if stale and rng.random() < 0.1:
            rng.choice(stale).stop()

    def _spoil_home(self, topic: Topic) -> None:
        if topic.lacking or topic.leaderless:
            if self.rng.random() < 0.5:
                return
            self._restore(topic)
            self.trace(f"{topic.name} is good again")
        else:
            some = self.rng.choice((topic.lacking, topic.lacking, topic.leaderless))
            some.add(self.rng.randrange(topic.partitions))
            self.trace(f"{topic.name} lacks {topic.lacking | topic.leaderless}")
        for node in self.nodes:
            if self.rng.random() < 0.7:  # else it hears when a record is not taken
                node.targets.forget(topic.name)

    def _deploy(self, number: int) -> None:
        """What the operator does in the course of a schedule."""
        plan = self.plan
        if number == plan.actions // 4:
            self.newest_version = self.homes_since
        if number == plan.actions // 3:
            self.homes_are_on = True
        if number == plan.actions // 2 and plan.partitions:
            for name in plan.topics:
                self.log.topics[name].partitions = plan.slices
            self.trace("partitions are added")

    def _change_roles(self, node: Node) -> None:
        """Roles as an ensemble may grant them that is slow, cut off or right: several nodes may
        have one at the same time.
        """
        rng = self.rng
        number = rng.randrange(self.plan.slices)
        choice = rng.random()
        if choice < 0.4:  # a planned move
            for other in self.nodes:
                if other is not node:
                    other.set_role(number, Role.REPLICA)
            node.set_role(number, rng.choice((Role.HEIR, Role.OWNER, Role.OWNER)))
        elif choice < 0.7:
            node.set_role(number, Role.OWNER)
        else:
            node.set_role(number, rng.choice((Role.REPLICA, Role.REPLICA, Role.PAUSED, Role.HEIR)))

    def _upset(self, node: Node) -> None:
        """The rarer troubles, each where its plan has it."""
        rng, plan = self.rng, self.plan
        if rng.random() < 0.5:
            self._step_clock(node)
        self._spoil_some()
        if plan.pauses and rng.random() < 0.5:
            self.paused ^= {rng.choice((*TARGETS, *TARGETS, *plan.topics, *plan.levels))}
            self.trace(f"paused: {sorted(self.paused)}")
            self._judge_anew()
        if plan.slots_fail and rng.random() < 0.7 and not node.is_running:
            self.trace(f"{node.name} loses a slot")
            node.disks[rng.choice(self.precise)].lose_slot()
        if plan.retention and rng.random() < 0.5:
            self._expire(rng.choice(self.places))
        if plan.lanes_change and rng.random() < 0.6:
            node.change_lanes()
        if plan.truncates:
            self._elect(rng.choice(self.places))
        if plan.recreates and rng.random() < 0.3:
            self._recreate(rng.choice(plan.topics))
        if rng.random() < 0.1:
            node.frozen = not node.frozen

    def _spoil_some(self) -> None:
        rng, plan = self.rng, self.plan
        for names, may_fail in ((TARGETS, plan.targets_fail), (OWN_TOPICS, plan.own_topics_fail)):
            if may_fail and rng.random() < 0.5:
                self._spoil(self.log.topics[rng.choice(names)])

    def _spoil(self, topic: Topic) -> None:
        """A target is bad from now on, or good again."""
        if not topic.is_fit:
            self._restore(topic)
            return
        kinds = ("gone", "forbidden", "strict", "without a leader", "lacking a copy")
        trouble = self.rng.choice(kinds)
        if trouble == "gone":
            topic.partitions = self.rng.randrange(TARGET_PARTITIONS)
        elif trouble == "forbidden":
            topic.is_forbidden = True
        elif trouble == "strict":
            topic.is_strict = True
        else:
            some = topic.leaderless if trouble == "without a leader" else topic.lacking
            some.add(self.rng.randrange(TARGET_PARTITIONS))
        self.trace(f"{topic.name} is {trouble}")

    def _restore(self, topic: Topic) -> None:
        if topic.name not in self.plan.topics:
            topic.partitions = TARGET_PARTITIONS
        topic.is_forbidden = topic.is_strict = False
        topic.leaderless.clear()
        topic.lacking.clear()

    def _judge_anew(self) -> None:
        for node in self.nodes:
            node.targets.changed()

    def _step_clock(self, node: Node) -> None:
        if self.plan.clock_back:
            node.skew_ms = self.rng.choice((-50, -20, -3, 0, 3, 20, 50))
            self.trace(f"{node.name}'s clock is {node.skew_ms} ms ahead")
        if self.plan.clock_wrong and self.rng.random() < 0.3:
            node.skew_ms = self.rng.choice((-2_000, -300, 300, 2_000, 0, 0))
            self.trace(f"{node.name}'s clock is {node.skew_ms} ms ahead")

    def _elect(self, place: Place) -> None:
        """Another leader takes a delay topic's partition, and perhaps lacks the end of it."""
        cuts = self.log.cuts(place)
        if not cuts or self.rng.random() < 0.3:
            self.log.elect(place)
            self.trace(f"{place} has another leader")
            return
        stop = self.rng.choice(cuts)
        self.log.truncate(place, stop)
        epoch = self.log.partition(place).leader_epoch
        self.oracle.truncated(place, self.log.topics[place[0]].topic_id, stop, epoch)
        self.trace(f"{place} ends at {stop} now")

    def _recreate(self, name: str) -> None:
        topic = self.log.topics[name]
        for number in range(topic.partitions):
            self.oracle.recreated((name, number), topic.topic_id)
        self.log.recreate(name)
        self.trace(f"{name} is made anew")
        self._turns_left = 0
        for node in self.nodes:  # what is read by the old name until then is not told apart
            node.see_topics()

    def _expire(self, place: Place) -> None:
        """Retention is longer than the roll window: it deletes what is settled, but nothing since
        a copy was made whose time has not come, or that H has not passed: it was written moments
        after.
        """
        shard, partition = self.oracle.shards[place], self.log.partition(place)
        pending = [o for o, record in shard.placed.items() if not record.outcome]
        bases = [
            record.base
            for record in shard.placed.values()
            if record.op == COPY and (shard.key_of(record) > shard.key or record.offset >= shard.h)
        ]
        stop = min([*pending, shard.h, *bases])
        partition.start = max(partition.start, self.rng.randint(0, stop))
        self.trace(f"{place} now starts at {partition.start}")

    def _break_down(self) -> None:
        """All nodes read for a while, and stop, or own nothing. Users write on, and retention
        deletes more than was settled, where all nodes had read the same.
        """
        self.calm = True
        for number in range(self.plan.slices):
            self._grant(number, None)
        for _ in range(_READ_TURNS):
            self._tick(20)
            self._turn()
        self.log.give_up_open()
        for node in self.nodes:
            if self.plan.stays_up:
                node.sync()  # long before retention deletes anything
            else:
                node.stop()
        self.calm = False
        read_to = {place: self.log.partition(place).last_stable for place in self.places}
        for _ in range(self.rng.randrange(12)):
            self.users.write_one()
        for place in self.places:
            shard, partition = self.oracle.shards[place], self.log.partition(place)
            stored = [node.stored(place) for node in self.nodes if place in node.disks]
            is_read = all(stop == read_to[place] for stop in stored)
            if shard.contracts and is_read and self.rng.random() < 0.8:
                partition.start = self.rng.randint(shard.h, partition.last_stable)
                self.oracle.expired(place, partition.start, read_to[place])
                self.trace(f"{place} starts at {partition.start}, and H is {shard.h}")
        self.has_broken_down = True
        for number in range(self.plan.slices):
            self._grant(number, self.rng.choice(self.nodes))

    # --- course --------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole schedule: trouble, then calm until all is settled, then proof that it stays so.

        Raises:
            ViolationError: a promise was broken.
        """
        with ExitStack() as stack:
            if self.plan.large:  # then sizes are compared before records are sent
                stack.enter_context(patch("delayservice.contract.provenance.LARGE_BYTES", 300))
            if self.plan.old_versions:
                before = PARAMETERS[CONTRACT_VERSION] - {"id_partitions"}
                known = {CONTRACT_VERSION: before, self.homes_since: PARAMETERS[CONTRACT_VERSION]}
                stack.enter_context(patch.dict(PARAMETERS, known))
            self._run()

    def _run(self) -> None:
        for number in range(self.plan.actions):
            if self.plan.outage and number == self.plan.actions // 2:
                self._break_down()
            if self.plan.homes:
                self._deploy(number)
            self._act()
        self._heal()
        (self._swap_elected if self.plan.elected else self._swap_owners)()
        for _ in range(12):
            self._tick(1_000)
            self._turn()
        self.oracle.check_chains()

    def _swap_owners(self) -> None:
        """All is settled; then other nodes own the slices."""
        owners = {n: self.rng.choice(self.nodes) for n in range(self.plan.slices)}
        self._drain(owners)
        self.oracle.check_chains()
        if self.plan.load:  # a writer may be lost, which a commit shows, and a clock be in doubt
            for number in owners:
                self.users.write_to(number)
            self._turn_until(lambda: self.oracle.is_drained)
            self._turn_until(lambda: all(_serves(n, o) for n, o in owners.items()))
            self._serve_load()
            self._turn_until(lambda: self.oracle.is_drained)
            self.oracle.check_chains()
        for number, owner in owners.items():
            heir = self.rng.choice([node for node in self.nodes if node is not owner])
            if self.rng.random() < 0.5:
                for disk in heir.disks.values():
                    disk.wipe()
                heir.loop = None
                heir.jobs.clear()
            self._grant(number, heir)

    def _swap_elected(self) -> None:
        self._turn_until(lambda: self.oracle.is_drained and self.elections.is_at_rest)
        self.oracle.check_chains()
        self.elections.swap()
        self._turn_until(lambda: self.elections.is_at_rest)

    def _heal(self) -> None:
        self.trace("--- all trouble ends")
        self.calm = True
        self.elections.calm()
        for topic in (*TARGETS, *(OWN_TOPICS if self.plan.own_topics_fail else ())):
            self._restore(self.log.topics[topic])
        for topic in self.plan.topics if self.plan.homes else ():
            self._restore(self.log.topics[topic])
        self.paused.clear()
        self._judge_anew()
        self.users.write_all()
        self.strangers.undo()
        for node in self.nodes:
            node.skew_ms = 0
            node.frozen = False
            if node.has_wrong_secret or node.is_stale:  # started again with the right ones
                node.stop()
            node.serve_all()

    def _grant(self, number: int, owner: Node | None) -> None:
        for node in self.nodes:
            node.set_role(number, Role.OWNER if node is owner else Role.REPLICA)

    def _drain(self, owners: dict[int, Node]) -> None:
        """Everything is settled within a bound: what one slice waits for holds up no other."""
        late = self.late
        for number, owner in owners.items():
            is_kept_back = number == late and self.plan.stuck == "take-over"
            self._grant(number, None if is_kept_back else owner)
        if self.plan.stuck == "take-over":
            self._begin_take_over(late, owners)
        if self.plan.stuck:
            # The coordinator ends what that take-over was to end, and other slices wait for.
            self.log.give_up_open()
            self._turn_until(lambda: self.oracle.is_drained_but(late))
        self.unelected.clear()
        self.unanswered.clear()
        self._turn_until(lambda: self.oracle.is_drained)

    def _serve_load(self) -> None:
        """Every record is in time, also while one target is bad."""
        bad, away = "", None
        late_ms_max = LATE_MS_MAX + 10 * self.plan.transaction_interval_ms
        if self.plan.targets_fail:
            bad = TARGETS[1]
            self._spoil(self.log.topics[bad])
        if self.plan.away:
            away = (self.plan.topics[0], self.rng.randrange(self.plan.homes))
            self.log.topics[away[0]].lacking.add(away[1])
            self.trace(f"{away} lacks copies")
        for turn in range(LOAD_TURNS):
            if turn % 3 == 0 and turn < LOAD_TURNS / 2:
                self.users.load()
            self._tick(20)
            self._turn()
            if not self.plan.rate_per_s:
                self.oracle.check_lateness(self.now_ms - late_ms_max, bad, away)
        for name in (bad, away and away[0]):
            if name:
                self._restore(self.log.topics[name])
                self._judge_anew()

    def _begin_take_over(self, number: int, owners: dict[int, Node]) -> None:
        """Let a node take a slice over, and get no answer."""
        owner = owners[number]
        others = [(n, node) for n, node in owners.items() if n != number]
        self._turn_until(lambda: all(_phase(n, node) is Phase.OWNER for n, node in others))
        self._turn_until(lambda: _phase(number, owner) in (Phase.REPLICA, None))
        self._grant(number, owner)
        self.holds_helpers = True
        for _ in range(TAKE_OVER_TURNS):
            self._tick(5)
            self._turn()
            if _phase(number, owner) is Phase.TAKING:
                if all(_phase(n, node) is Phase.OWNER for n, node in others):
                    self.unanswered += [job for job in owner.jobs if owner.takes_over_by(job)]
                break
        else:
            raise ViolationError(f"slice {number} was never claimed")
        self.holds_helpers = False

    def _turn_until(self, is_done: Callable[[], bool]) -> None:
        for turn in range(DRAIN_TURNS):
            if is_done():
                return
            self._tick(20 if turn < 50 else 200)
            self._turn()
            if turn % 100 == 99:
                self.users.cancel_doubled()
        raise ViolationError(f"never owned, or never settled: {self.oracle.pending()}")

    def _turn(self) -> None:
        self.log.complete_markers()
        self.strangers.undo()
        for node in self.nodes:
            for job in [job for job in node.jobs if job not in self.unanswered]:
                node.finish(job)
            node.see_topics()
            node.step()
            node.tail()  # at once: a late answer says little about a clock


def _takes_records(topic: Topic, number: int) -> bool:
    is_there = number < topic.partitions
    return is_there and number not in topic.lacking | topic.leaderless


def _serves(number: int, node: Node) -> bool:
    return _phase(number, node) is Phase.OWNER and node.watch.doubt() is None


def _phase(number: int, node: Node) -> Phase | None:
    """How far a node is on the way to a slice."""
    slice_ = node.slice_of(number)
    return None if slice_ is None else slice_.phase
