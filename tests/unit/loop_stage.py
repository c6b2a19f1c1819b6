"""A worker's loop between ports in memory: one log per shard, one transactional log for claims and
checkpoints, a clock that a test moves, and helpers that run at once or when a test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from delayservice.base.clock import ClockWatch
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import CONTRACT_VERSION, Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.engine.checkpoint import Checkpoint, decode_checkpoint
from delayservice.engine.claims import Claimed, ClaimLog, encode_key
from delayservice.engine.outcome import Output, OutputCounters
from delayservice.engine.ports import (
    Bounds,
    Control,
    PartitionError,
    Place,
    PolledBatch,
    ReadBack,
    Role,
)
from delayservice.slices.edges import Edges, Limits
from delayservice.slices.lane import Lane
from delayservice.slices.loop import WorkerLoop
from delayservice.slices.slice import Slice
from delayservice.store.memory import MemoryStore
from tests.unit.known_targets import KnownTargets
from tests.unit.lanes import routes_of

TOPIC = "delay_topic_any"
NOW_MS = 1_900_000_000_000
STEP_MS = 10
"""After a step of so long there may be a commit, unless the limits of a test say otherwise."""
ROUTES = routes_of(3_600_000, 100)

Answer = TypeVar("Answer")


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_s(self) -> float:
        return self.now_ms / 1000


class Inline:
    """A background that does all at once; while ``holds``, only what ``run`` is called for."""

    def __init__(self) -> None:
        self.holds = False
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        future: Future[Answer] = Future()

        def run() -> None:
            try:
                result = work()
            except KafkaEdgeError as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        if self.holds:
            self.waiting.append(run)
        else:
            run()
        return future

    def run(self) -> None:
        self.waiting.popleft()()


class Logs:
    """The delay topics as one consumer sees them."""

    def __init__(self) -> None:
        self.rows: dict[Place, list[PolledRecord]] = {}
        self.positions: dict[Place, int] = {}
        self.paused: set[Place] = set()
        self.troubles: list[PartitionError] = []
        self.polls = 0
        self.while_polling: Callable[[], None] = lambda: None

    def write(
        self, place: Place, now_ms: int, delays_ms: Iterable[int], headers: Headers | None = None
    ) -> None:
        rows = self.rows.setdefault(place, [])
        for delay_ms in delays_ms:
            asked: Headers = [("delay-after", b"%d" % delay_ms), ("delay-target-topic", b"orders")]
            asked += headers or []
            rows.append((len(rows), now_ms, None, b"%d" % len(rows), asked))

    def seek(self, place: Place, offset: int, _last: object = None) -> None:
        self.positions[place] = offset

    def drop(self, place: Place) -> None:
        self.positions.pop(place, None)

    def poll(self, _timeout_s: float, limit: int, _gather_s: float = 0.0) -> list[PolledBatch]:
        self.polls += 1
        self.while_polling()
        runs = []
        for place, at in sorted(self.positions.items()):
            rows = self.rows.get(place, [])[at : at + limit]
            if rows and place not in self.paused:
                self.positions[place] = at + len(rows)
                runs.append(PolledBatch(place, at, list(rows), at + len(rows)))
        return runs

    def wake(self) -> None: ...

    def take_errors(self) -> Sequence[PartitionError]:
        troubles, self.troubles = self.troubles, []
        return troubles

    def pause(self, place: Place) -> None:
        self.paused.add(place)

    def resume(self, place: Place) -> None:
        self.paused.discard(place)

    def bounds(self, place: Place) -> Bounds:
        return Bounds(0, len(self.rows.get(place, [])))

    def topic_id(self, topic: str) -> str | None:
        return topic

    def scan(self, place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        yield PolledBatch(place, start, self.rows.get(place, [])[start:stop], stop)


@dataclass
class Transaction:
    outputs: list[tuple[Place, Output]] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)

    @property
    def words(self) -> list[tuple[int, str]]:
        """Claims and releases by slice; ``forgotten`` for tombstones."""
        kinds = ("claim", "release")
        return [
            (
                c.slice_no,
                next((k for k in kinds if f'"{k}"'.encode() in (c.value or b"")), "forgotten"),
            )
            for c in self.controls
            if c.writer
        ]

    @property
    def checkpoints(self) -> list[int]:
        return [control.slice_no for control in self.controls if not control.writer]


class Writer:
    """The sink: commits go to ``committed`` and to the logs of claims and checkpoints.

    Attributes:
        refuses_to: by call, what it raises instead the next time.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.name = ""
        self.opened: list[str] = []
        self.discarded = 0
        self.aborted = 0
        self.open_outputs: list[tuple[Place, Output]] = []
        self.committed: list[Transaction] = []
        self.refuses_to: dict[str, Exception] = {}
        self.claims: list[tuple[bytes, bytes | None]] = []
        self.checkpoints: dict[int, ReadBack] = {}
        self.news: set[int] = set()

    def _may(self, call: str) -> None:
        refusal = self.refuses_to.pop(call, None)
        if refusal is not None:
            self.open_outputs.clear()
            raise refusal

    def open(self) -> str:
        self._may("open")
        self.name = f"w{len(self.opened) + 1}"
        self.opened.append(self.name)
        return self.name

    def check(self) -> None:
        self._may("check")

    def send(self, place: Place, outputs: Sequence[Output]) -> None:
        if outputs:
            self._may("send")
        self.open_outputs += [(place, output) for output in outputs]

    def commit(self, controls: Sequence[Control]) -> None:
        self._may("commit")
        outputs, self.open_outputs = self.open_outputs, []
        self.committed.append(Transaction(outputs, list(controls)))
        for slice_no, value, writer in controls:
            if writer:
                self.claims.append((encode_key(slice_no, writer), value))
            else:
                assert value is not None
                self.note_checkpoint(slice_no, value)

    def note_checkpoint(self, slice_no: int, value: bytes) -> None:
        now_ms = self._clock.now_ms
        before = self.checkpoints.get(slice_no)
        offset = 0 if before is None else before.offset + 1
        self.checkpoints[slice_no] = ReadBack(value, now_ms, now_ms, offset)
        self.news.add(slice_no)

    def abort(self) -> None:
        self._may("abort")
        self.aborted += 1
        self.open_outputs.clear()

    def discard(self) -> None:
        self.discarded += 1
        self.open_outputs.clear()

    def checkpoint(self, slice_no: int) -> Checkpoint:
        return decode_checkpoint(self.checkpoints[slice_no].data)

    def sent(self) -> list[tuple[Place, Output]]:
        return [output for one in self.committed for output in one.outputs]


class Tailed:
    """Checkpoints as they come back at once."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def take_updated(self) -> Collection[int]:
        news, self._writer.news = self._writer.news, set()
        return news

    def follow(self, slice_no: int) -> None: ...

    def read_back(self, slice_no: int) -> ReadBack | None:
        return self._writer.checkpoints.get(slice_no)

    def is_newest(self, _slice_no: int) -> bool:
        return True

    def is_unserved(self, slice_no: int) -> bool:
        return slice_no not in self._writer.checkpoints

    def take_cuts(self, _slice_no: int) -> Sequence[ReadBack]:
        return ()


class Heritage:
    """What a take-over asks for; ``calls`` notes the order.

    Attributes:
        denies: slices that the ensemble does not confirm.
        refuses_to: by call, what it raises instead the next time.
        while_fencing: called before anybody is fenced.
    """

    def __init__(self, writer: Writer, logs: Logs) -> None:
        self._writer = writer
        self._logs = logs
        self._log = ClaimLog()
        self._read = 0
        self.denies: set[int] = set()
        self.fenced: list[str] = []
        self.calls: list[str] = []
        self.refuses_to: dict[str, Exception] = {}
        self.while_fencing: Callable[[], None] = lambda: None

    def _called(self, call: str) -> None:
        self.calls.append(call)
        refusal = self.refuses_to.pop(call, None)
        if refusal is not None:
            raise refusal

    def enter(self, writer: str) -> None:
        self._called("enter")
        self._log.enter(writer)

    def confirm(self, slices: Collection[int]) -> frozenset[int]:
        self._called("confirm")
        return frozenset(slices) - self.denies

    def await_claims(self, slices: Mapping[int, int]) -> Mapping[int, Claimed]:
        self._called("await_claims")
        for offset, (key, value) in enumerate(self._writer.claims):
            if offset >= self._read:
                self._log.take(offset, key, value)
        self._read = len(self._writer.claims)
        found = {}
        for number, above in slices.items():
            claimed = self._log.claimed(number, above)
            assert claimed is not None, f"slice {number} was not claimed"
            found[number] = claimed
        return found

    def newest(self, slice_no: int) -> bytes | None:
        self._called("newest")
        found = self._writer.checkpoints.get(slice_no)
        return None if found is None else found.data

    def fence(self, writers: Collection[str]) -> None:
        self.while_fencing()
        self._called("fence")
        self.fenced += sorted(writers)

    def read_to_end(self, slices: Collection[int]) -> Mapping[int, bytes | None]:
        self._called("read_to_end")
        return {number: self.newest(number) for number in slices}

    def bounds(self, places: Mapping[Place, str]) -> Mapping[Place, Bounds]:
        self._called("bounds")
        return {place: self._logs.bounds(place) for place in places}


class Ensemble:
    """The gate: roles as a test sets them, and what it was told."""

    def __init__(self) -> None:
        self._roles: Mapping[int, Role] = {}
        self.version = CONTRACT_VERSION
        self.served: set[int] = set()
        self.told: list[tuple[int, bool]] = []
        self.given_up: list[tuple[int, str]] = []

    def says(self, role: Role, slices: Iterable[int]) -> None:
        """Give slices a role; the others keep theirs."""
        self._roles = {**self._roles, **dict.fromkeys(slices, role)}

    def roles(self) -> Mapping[int, Role]:
        return self._roles

    def epoch(self, _slice_no: int) -> int:
        return 7

    def contract_version(self) -> int:
        return self.version

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        self.told.append((slice_no, is_settling))
        (self.served.add if is_settling else self.served.discard)(slice_no)

    def gave_up(self, slice_no: int, why: str) -> None:
        self.given_up.append((slice_no, why))


class Watch(ClockWatch):
    def __init__(self) -> None:
        self.reason: str | None = None
        self.answers: list[tuple[int, float]] = []

    def doubt(self) -> str | None:
        return self.reason

    def heard_answer(self, broker_ms: int, _boot_ms: int, sent_s: float, *_: object) -> None:
        self.answers.append((broker_ms, sent_s))


class Heard:
    def __init__(self) -> None:
        self.transactions: list[tuple[list[int], bool]] = []

    def ingested(self, records: int) -> None: ...

    def settled(self, tally: OutputCounters, now_ms: int) -> None: ...

    def turned(self, seconds: float) -> None: ...

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        assert seconds >= 0
        self.transactions.append((sorted(slices), committed))


def contract_of(_topic: str, version_max: int) -> Contract:
    return Contract(version_max)


class Stage:
    """A loop over slices that have one shard each, all replicas at first."""

    def __init__(
        self, *slices: int, limits: Limits | None = None, logs: Logs | None = None, **more: Any
    ) -> None:
        """``more``: arguments of the loop."""
        self.clock = ManualClock()
        self.logs = logs or Logs()
        self.sink = Writer(self.clock)
        self.heritage = Heritage(self.sink, self.logs)
        self.gate = Ensemble()
        self.clock_watch = Watch()
        self.background = Inline()
        more = {"reading": self.background} | more
        self.heard = Heard()
        self.targets = KnownTargets()
        edges = Edges(
            node_id="n1",
            source=self.logs,
            sink=self.sink,
            checkpoints=Tailed(self.sink),
            take_over_client=self.heritage,
            background=self.background,
            writing=self.background,
            clock=self.clock,
            gate=self.gate,
            clock_watch=self.clock_watch,
            observer=self.heard,
            routes=ROUTES,
            contract_of=contract_of,
            limits=limits or Limits(transaction_interval_ms_min=STEP_MS - 1),
            **more,
        )
        self.loop = WorkerLoop(edges)
        for number in slices:
            self.add(number)

    def add(self, number: int, topic: str = TOPIC) -> None:
        lane = Lane(topic, number, topic, MemoryStore(), self.logs, ROUTES, targets=self.targets)
        lane.adopt(Contracts([(0, Contract())]))
        self.loop.add_lanes(number, [lane])

    def of(self, number: int) -> Slice:
        return self.loop.slices[number]

    def lane(self, number: int, topic: str = TOPIC) -> Lane:
        lane = self.of(number).lanes[topic]
        assert isinstance(lane, Lane)
        return lane

    def write(self, number: int, *delays_ms: int, headers: Headers | None = None) -> None:
        self.logs.write((TOPIC, number), self.clock.now_ms, delays_ms, headers)

    def step(self, after_ms: int = 0, times: int = 1) -> None:
        """Turns, each after so much time, and with what helpers have done in it."""
        for _ in range(times):
            self.clock.now_ms += after_ms
            self.loop.step(0)
            while not self.loop.state.inbox.is_empty:
                self.loop.step(0)

    def turn(self, after_ms: int) -> None:
        """One turn, in which no commit of its own is heard."""
        self.clock.now_ms += after_ms
        self.loop.step(0)

    def own(self) -> None:
        """Become the owner of all slices, and let the first checkpoints be committed."""
        self.gate.says(Role.OWNER, self.loop.slices)
        self.step(10, 4)
        assert all(one.is_owner for one in self.loop.slices.values())

    def delivered(self) -> list[tuple[int, int]]:
        """Slice and offset of every delivery that is committed."""
        return [(place[1], one[7]) for place, one in self.sink.sent() if one[1] == "orders"]
