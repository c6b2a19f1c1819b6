"""The ports of ``delayservice.lanes.ports`` over the model log, one set per life of a node.

Every call passes ``node.point`` before and after its effect: there the schedule may crash the node,
run the others and its own helpers, let users write, or move the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from delayservice.core.claims import Claimed, ClaimLog, encode_key
from delayservice.core.codes import TARGET_ASKED, TARGET_PAUSED
from delayservice.core.entry import Headers
from delayservice.core.outcome import DELIVERED, FIRED, PARKED, Output, Tally, Target
from delayservice.core.role import Role
from delayservice.errors import (
    KafkaEdgeError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
)
from delayservice.lanes.ports import Bounds, Control, Place, ReadBack, Run, Trouble
from tests.simulation.history import ViolationError
from tests.simulation.sim_log import (
    CHECKPOINT_PARTITIONS,
    CHECKPOINTS,
    CLAIMS_PLACE,
    OPEN,
    Transaction,
    Written,
    checkpoint_place,
    topic_id,
)

if TYPE_CHECKING:
    from tests.simulation.node import Node

CUT_EVERY = 4
HELD_MS = 100
PATIENCE = 4
"""How often a take-over looks again before it fences whoever is in its way."""
ANSWERS_MAX = 24
TARGET_DOWN = ("target-unknown", "not there")
REFUSAL = ("too-large", "more than max.message.bytes")

WRITER = "writer"
"""Header of the service's own records: a tombstone's key names another writer."""

Answer = TypeVar("Answer")


class SimSource:
    """See ``ports.Source``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = node.world.log
        self._positions: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._troubles: list[Trouble] = []

    def seek(self, place: Place, offset: int) -> None:
        """See the port."""
        self._node.point("seek")
        self._node.trace(f"seeks {place} {offset}")
        self._positions[place] = offset

    def drop(self, place: Place) -> None:
        """See the port."""
        self._positions.pop(place, None)

    def pause(self, place: Place) -> None:
        """See the port."""
        self._paused.add(place)

    def resume(self, place: Place) -> None:
        """See the port."""
        self._paused.discard(place)

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[Run]:
        """See the port. Nobody waits here."""
        del gather_s
        world = self._node.world
        self._node.point(f"poll for {timeout_s:.4f} s")
        runs = []
        for place, position in list(self._positions.items()):
            partition = self._log.partition(place)
            if position < partition.start:
                del self._positions[place]
                self._troubles.append(Trouble(place, f"offset {position} is gone", has_moved=True))
            elif world.flip(world.plan.broken_call * 0.3):
                self._node.trace(f"can't read {place}")
                self._troubles.append(Trouble(place, "broken", has_moved=False))
            elif place not in self._paused and position < partition.last_stable:
                few = min(limit, world.rng.choice((1, 2, limit)))
                rows, stop = self._log.read(place, position, partition.last_stable, few)
                self._positions[place] = stop
                runs.append(Run(place, position, rows, stop))
                self._node.trace(f"reads {place} [{position}, {stop})")
        self._node.point("polled")
        return runs

    def take_troubles(self) -> Sequence[Trouble]:
        """See the port."""
        troubles, self._troubles = self._troubles, []
        return troubles

    def bounds(self, place: Place) -> Bounds:
        """See the port."""
        self._node.call("bounds")
        partition = self._log.partition(place)
        return Bounds(partition.start, partition.end)

    def topic_id(self, topic: str) -> str:
        """See the port. No topic is recreated here."""
        self._node.call("topic_id")
        return topic_id(topic)

    def scan(self, place: Place, start: int, stop: int) -> Iterator[Run]:
        """See the port."""
        while start < stop:
            self._node.call(f"scan {place} [{start}, {stop})")
            partition = self._log.partition(place)
            if start < partition.start:
                raise KafkaEdgeError(f"{place} no longer holds offset {start}")
            rows, reached = self._log.read(place, start, min(stop, partition.last_stable), 2)
            yield Run(place, start, rows, reached)
            start = reached


class SimSink:
    """See ``ports.Sink``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._log = node.world.log
        self._writer = ""
        self._transaction: Transaction | None = None
        self._refusals: dict[tuple[Place, int], tuple[str, str]] = {}

    def open(self) -> str:
        """See the port."""
        with self._node.frame("sink"):
            self.discard()
            self._node.call("open a writer")
            self._writer = self._log.new_writer(self._node.name)
            self._node.trace(f"is writer {self._writer}")
            self._node.point("opened")
            return self._writer

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        """See the port."""
        self._node.point("before send")
        clock = self._node.clock
        for kind, topic, _, key, value, headers, _, offset in outputs:
            transaction = self._opened()
            if kind == PARKED and self._world.plan.pauses:
                self._world.oracle.held.add((place, offset))
            if kind in (DELIVERED, FIRED) and {topic, place[0]} & self._world.paused:
                raise ViolationError(f"{offset} of {place} goes to {topic}, and that is paused")
            if kind in (DELIVERED, FIRED) and self._world.is_refused(value):
                self._refusals[place, offset] = REFUSAL
                if self._world.flip(0.5):
                    raise RefusedError(dict(self._refusals))
                continue
            to = (topic, place[1] if topic in self._world.plan.topics else 0)
            record = (key, value, headers)
            sent = (clock.read_ms, clock.read_skew_ms)
            self._log.append(to, self._world.now_ms, record, transaction, sent)
        self._node.trace(f"sends {[(o[0], o[7]) for o in outputs]} of {place}")
        self._node.point("after send")

    def _opened(self) -> Transaction:
        self._check()
        if self._transaction is None:
            self._transaction = self._log.begin(self._writer)
        return self._transaction

    def _check(self) -> None:
        transaction = self._transaction
        if transaction is not None and transaction.in_doubt:
            raise ViolationError(f"{self._writer} goes on after an uncertain commit")
        if not self._writer or self._writer in self._log.fenced:
            raise OwnershipLostError(f"writer {self._writer} is fenced")

    def commit(self, controls: Sequence[Control]) -> None:
        """See the port. Brokers write in any order what one producer sends them."""
        with self._node.frame("sink"):
            self._node.point("before commit")
            transaction = self._opened()
            if self._refusals:
                refusals = dict(self._refusals)
                self.abort()
                raise RefusedError(refusals)
            for control in self._world.rng.sample(controls, len(controls)):
                self._check()
                self._append(control, transaction)
                self._node.point("control written")
            self._node.point("commit flushed")
            self._check()
            if self._world.flip(self._world.plan.abort):
                self.abort()
                raise TransactionAbortedError("aborted")
            transaction.in_doubt = True
            self._node.point("commit is on its way")
            if self._world.flip(self._world.plan.uncertain):
                self._node.trace("commits, and hears no answer")
                raise OwnershipLostError("no answer")
            if transaction.state == OPEN:
                self._node.trace("commits")
                lazy = self._world.plan.lazy_markers
                self._log.decide(transaction, commit=True, lazy_markers=lazy)
            elif self._writer in self._log.fenced:
                raise OwnershipLostError("fenced while it was committing")
            self._transaction = None
            self._node.point("after commit")

    def _append(self, control: Control, transaction: Transaction) -> None:
        if control.writer:
            if control.value is None and control.writer not in self._log.fenced:
                raise ViolationError(f"{control.writer} is forgotten, and was not fenced")
            place, key = CLAIMS_PLACE, encode_key(control.slice_no, control.writer)
        else:
            place, key = checkpoint_place(control.slice_no), b"%d" % control.slice_no
        self._node.trace(f"writes {place[0]} {key!r} {(control.value or b'-')[:90]!r}")
        said: Headers = [(WRITER, self._writer.encode())]
        self._log.append(place, self._world.now_ms, (key, control.value, said), transaction)

    def abort(self) -> None:
        """See the port."""
        self._node.point("before abort")
        self._refusals.clear()
        transaction = self._transaction
        if transaction is None:
            return
        if transaction.in_doubt:
            raise ViolationError("aborted after an uncertain commit")
        self._transaction = None
        if self._writer in self._log.fenced or transaction.state != OPEN:
            raise OwnershipLostError("fenced at abort")
        self._node.trace("aborts")
        self._log.decide(transaction, commit=False)

    def discard(self) -> None:
        """See the port."""
        self._node.point("discard")
        self._transaction = None
        self._refusals.clear()
        self._writer = ""


class SimTargets:
    """See ``ports.Targets``; of one slice."""

    def __init__(self, node: Node, slice_no: int) -> None:
        self.fit: set[Target] = set()
        self._world = node.world
        self._slice_no = slice_no

    def obstacle(self, target: Target) -> tuple[str, str] | None:
        """See the port."""
        world, topic = self._world, target[0]
        if topic in world.paused:
            return TARGET_PAUSED, "somebody said so"
        if world.is_asked(self._slice_no, topic):
            return TARGET_ASKED, "nobody knows yet"
        if topic in world.targets_down:
            return TARGET_DOWN
        if not world.plan.asked:
            self.fit.add(target)
        return None

    def expect(self, targets: Collection[Target]) -> None:
        """See the port."""


class SimCheckpoints:
    """See ``ports.Checkpoints``: checkpoints and claims as they are tailed.

    Attributes:
        claims: the claims that were read.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = node.world.log
        self._read_back: dict[int, ReadBack] = {}
        self._news: set[int] = set()
        self._cuts: dict[int, list[ReadBack]] = {}
        self._seen: dict[Place, int] = {}
        self.claims = ClaimLog()

    def tail(self) -> None:
        """Read back everything there is now."""
        for number in range(CHECKPOINT_PARTITIONS):
            for written in self._tailed((CHECKPOINTS, number)):
                self._note(written)
        self.tail_claims()

    def tail_claims(self) -> None:
        """Read the claims on; what was there before this life was compacted meanwhile."""
        is_first = CLAIMS_PLACE not in self._seen
        tailed = self._tailed(CLAIMS_PLACE)
        if is_first:
            last = {written.key: written for written in tailed}
            tailed = [w for w in tailed if last[w.key] is w and w.value is not None]
        for written in tailed:
            self.claims.take(written.offset, written.key, written.value)

    def _tailed(self, place: Place) -> list[Written]:
        partition = self._log.partition(place)
        start, stop = self._seen.get(place, 0), partition.last_stable
        self._seen[place] = max(start, stop)
        return [w for w in partition.written[start:stop] if w.is_committed]

    def _note(self, written: Written) -> None:
        slice_no = int(written.key or b"")
        self._node.trace(f"has read back checkpoint {written.offset} of slice {slice_no}")
        read_back = self._as_read_back(written)
        if slice_no in self._read_back and written.offset % CUT_EVERY == 0:
            self._cuts.setdefault(slice_no, []).append(read_back)
        self._read_back[slice_no] = read_back
        self._news.add(slice_no)

    def _as_read_back(self, written: Written) -> ReadBack:
        now_ms = self._node.world.now_ms + self._node.skew_ms
        return ReadBack(written.value or b"", written.timestamp_ms, now_ms, now_ms, written.offset)

    def seen(self, place: Place) -> int:
        """Return how far a partition was read."""
        return self._seen.get(place, 0)

    def take_news(self) -> Collection[int]:
        """See the port."""
        self._node.point("any news?")
        if self._node.world.flip(0.5):
            self.tail()
        news, self._news = self._news, set()
        return sorted(news)

    def read_back(self, slice_no: int) -> ReadBack | None:
        """See the port."""
        return self._read_back.get(slice_no)

    def is_unserved(self, slice_no: int) -> bool:
        """See the port."""
        return slice_no not in self._read_back

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """See the port: checkpoints at every so many offsets, which all nodes agree on."""
        return self._cuts.pop(slice_no, [])


class SimSuccession:
    """See ``ports.Succession``."""

    def __init__(self, node: Node, checkpoints: SimCheckpoints) -> None:
        self._node = node
        self._world = node.world
        self._log = node.world.log
        self._checkpoints = checkpoints
        self._fenced: set[str] = set()

    def enter(self, writer: str) -> None:
        """See the port."""
        self._checkpoints.claims.enter(writer)

    def confirm(self, slices: Collection[int]) -> frozenset[int]:
        """See the port."""
        self._node.call("confirm")
        return frozenset(n for n in slices if self._node.roles[n] is Role.OWNER)

    def await_claims(self, slices: Mapping[int, int]) -> Mapping[int, Claimed]:
        """See the port."""
        for looks in range(ANSWERS_MAX):
            self._node.call("await claims")
            self._checkpoints.tail_claims()
            found = {n: self._checkpoints.claims.claimed(n, at) for n, at in slices.items()}
            claims = {n: claimed for n, claimed in found.items() if claimed is not None}
            if len(claims) == len(slices):
                return claims
            self._unblock(CLAIMS_PLACE, looks)
        raise KafkaEdgeError("own claims did not come back")

    def newest(self, slice_no: int) -> bytes | None:
        """See the port: as far as it was tailed."""
        self._node.call(f"newest checkpoint of slice {slice_no}")
        if self._checkpoints.read_back(slice_no) is None:
            self._checkpoints.tail()
        found = self._checkpoints.read_back(slice_no)
        return None if found is None else found.data

    def legacy_writer(self, slice_no: int) -> str | None:
        """See the port: version 1 has never been here."""
        del slice_no
        return None

    def fence(self, writers: Collection[str]) -> None:
        """See the port."""
        for writer in sorted(writers):
            self._node.call(f"fence {writer}")
            if writer not in self._fenced:
                self._fenced.add(writer)
                self._log.fence(writer, doubt_commits=self._world.flip(0.5))
                self._node.trace(f"fences {writer}")
            self._node.point(f"fenced {writer}")

    def read_to_end(self, slices: Collection[int]) -> Mapping[int, bytes | None]:
        """See the port."""
        places = sorted({checkpoint_place(slice_no) for slice_no in slices})
        ends = {place: self._log.partition(place).end for place in places}
        self._node.call("read to the end")
        for place, end in ends.items():
            looks = 0
            while self._log.partition(place).last_stable < end:
                self._unblock(place, looks)
                looks += 1
                self._node.call("read to the end")
        self._checkpoints.tail()
        return {n: self._data(n) for n in slices}

    def _data(self, slice_no: int) -> bytes | None:
        found = self._checkpoints.read_back(slice_no)
        return None if found is None else found.data

    def _unblock(self, place: Place, looks: int) -> None:
        """Wait for whoever keeps a partition from being read on; fence it when that takes long."""
        blocker = self._log.blocker(place)
        if blocker is None or blocker.transaction is None:
            return
        if blocker.transaction.state != OPEN:
            if self._world.calm or looks >= PATIENCE:
                self._log.complete_markers()
        elif self._world.calm or looks >= PATIENCE:
            self._node.trace(f"is blocked by {place} {blocker.offset}")
            self.fence([(dict(blocker.headers)[WRITER] or b"").decode()])

    def bounds(self, places: Collection[Place]) -> Mapping[Place, Bounds]:
        """See the port."""
        found = {}
        for place in places:
            self._node.call("ends of logs")
            partition = self._log.partition(place)
            if not self._world.flip(self._world.plan.broken_call):
                found[place] = Bounds(partition.start, partition.end)
        return found


class _Answering(Future[Any]):
    """A future whose work is done at the latest when somebody waits for it."""

    job: Job

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait."""
        if not self.done():
            self.job.finish()
        return super().exception(timeout)


class Job:
    """Work on a helper thread: waiting, on the way, answered, or heard of."""

    def __init__(self, node: Node, work: Callable[[], Any]) -> None:
        self.future = _Answering()
        self.future.job = self
        self.is_running = False
        self.is_answered = False
        self._node = node
        self._work = work
        self._answer: Any = None
        self._error: KafkaEdgeError | None = None

    def run(self) -> None:
        """Do the work; the answer is on its way back."""
        self.is_running = True
        try:
            self._answer = self._work()
        except KafkaEdgeError as exc:
            self._error = exc
        self.is_running = False
        self.is_answered = True

    def tell(self) -> None:
        """Let the answer arrive."""
        if self in self._node.jobs:
            self._node.jobs.remove(self)
        if not self.future.set_running_or_notify_cancel():
            return
        if self._error is None:
            self.future.set_result(self._answer)
        else:
            self.future.set_exception(self._error)

    def finish(self) -> None:
        """Do all of that now."""
        assert not self.is_running
        if not self.is_answered:
            self.run()
        self.tell()


class SimBackground:
    """See ``ports.Background``: the schedule decides when work is done, and when that is heard."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        """See the port."""
        job = Job(self._node, work)
        self._node.jobs.append(job)
        if not self._world.is_late():
            job.run()
            if not self._world.is_late():
                job.tell()
        return job.future


class SimClock:
    """See ``ports.Clock``. ``read_ms`` is what the node was told last, ``read_skew_ms`` how far
    that was ahead.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.read_ms = 0
        self.read_skew_ms = 0

    def wall_ms(self) -> int:
        """See the port."""
        self.read_skew_ms = self._node.skew_ms
        self.read_ms = self._node.world.now_ms + self.read_skew_ms
        return self.read_ms

    def monotonic_s(self) -> float:
        """See the port."""
        return self._node.world.elapsed_ms / 1000


class SimGate:
    """See ``ports.Gate``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def roles(self) -> Mapping[int, Role]:
        """See the port."""
        self._node.point("which roles?")
        return self._node.roles

    def epoch(self, slice_no: int) -> int:  # noqa: ARG002  # the checkpoint's decides
        """See the port."""
        return 0

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """See the port."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """See the port; the schedule decides who owns next."""

    def frozen(self) -> str | None:
        """See the port."""
        return "in doubt" if self._node.frozen else None

    def heard_broker(self, broker_ms: int, read_back: ReadBack | None, sent_s: float) -> None:
        """See the port; the schedule decides when a clock is in doubt."""


class SimObserver:
    """See ``ports.Observer``."""

    def ingested(self, slice_no: int, records: int) -> None:
        """See the port."""

    def settled(self, slice_no: int, tally: Tally, now_ms: int) -> None:
        """See the port."""

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        """See the port."""
