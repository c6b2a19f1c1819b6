"""The ports of ``delayservice.lanes.ports`` over the model log, one set per life of a node.

Every call passes ``node.point`` before and after its effect: there the schedule may crash the node,
run the other one, let users write, or move the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from delayservice.core.codes import TARGET_PAUSED
from delayservice.core.outcome import DELIVERED, FIRED, PARKED, Output, Tally, Target
from delayservice.core.role import Role
from delayservice.errors import (
    KafkaEdgeError,
    LogMovedError,
    OwnershipLostError,
    RefusedError,
    TransactionAbortedError,
)
from delayservice.lanes.ports import Bounds, ReadBack, Run
from tests.simulation.history import ViolationError
from tests.simulation.sim_log import OPEN, Transaction, Written, topic_id

if TYPE_CHECKING:
    from tests.simulation.node import Node

CHECKPOINTS = "delay_checkpoint"
CUT_EVERY = 4
HELD_MS = 100
TARGET_DOWN = ("target-unknown", "not there")
REFUSAL = ("too-large", "more than max.message.bytes")

Targets = Mapping[tuple[str, int], tuple[str, str]]


class SimSource:
    """See ``ports.Source``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = node.world.log
        self._positions: dict[str, int] = {}
        self._paused: set[str] = set()

    def seek(self, topic: str, offset: int) -> None:
        """See the port."""
        self._node.point("seek")
        self._node.trace(f"seeks {topic} {offset}")
        self._positions[topic] = offset

    def drop(self, topic: str) -> None:
        """See the port."""
        self._positions.pop(topic, None)

    def pause(self, topic: str) -> None:
        """See the port."""
        self._paused.add(topic)

    def resume(self, topic: str) -> None:
        """See the port."""
        self._paused.discard(topic)

    def poll(self, timeout_s: float, limit: int) -> list[Run]:
        """See the port."""
        self._node.call(f"poll for {timeout_s} s")
        runs = []
        for topic, position in self._positions.items():
            if position < self._log.partition(topic).start:
                raise LogMovedError(topic, f"offset {position} is gone")
        for topic, position in list(self._positions.items()):
            partition = self._log.partition(topic)
            if topic in self._paused or position >= partition.last_stable:
                continue
            few = min(limit, self._node.world.rng.choice((1, 2, limit)))
            rows, stop = self._log.read(topic, position, partition.last_stable, few)
            self._positions[topic] = stop
            runs.append(Run(topic, position, rows, stop))
            self._node.trace(f"reads {topic} [{position}, {stop})")
        self._node.point("polled")
        return runs

    def bounds(self, topic: str) -> Bounds:
        """See the port."""
        self._node.call("bounds")
        partition = self._log.partition(topic)
        return Bounds(partition.start, partition.end)

    def topic_id(self, topic: str) -> str:
        """See the port. No topic is recreated here."""
        self._node.call("topic_id")
        return topic_id(topic)

    def scan(self, topic: str, start: int, stop: int) -> Iterator[Run]:
        """See the port."""
        while start < stop:
            self._node.call(f"scan {topic} [{start}, {stop})")
            partition = self._log.partition(topic)
            if start < partition.start:
                raise KafkaEdgeError(f"{topic} no longer holds offset {start}")
            rows, reached = self._log.read(topic, start, min(stop, partition.last_stable), 2)
            yield Run(topic, start, rows, reached)
            start = reached


class SimSink:
    """See ``ports.Sink``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._log = node.world.log
        self._epoch = -1
        self._transaction: Transaction | None = None
        self._refusals: dict[tuple[str, int], tuple[str, str]] = {}

    def prepare(self) -> None:
        """See the port."""

    def init(self) -> None:
        """See the port."""
        self._node.call("init")
        self._transaction = None
        self._refusals.clear()
        self._epoch = self._log.fence(doubt_commits=self._world.flip(0.5))
        self._node.trace(f"fences all others, epoch {self._epoch}")
        self._node.point("fenced the others")

    def blocked(self, targets: Collection[Target]) -> dict[Target, tuple[str, str]]:
        """See the port."""
        return {(topic, -1): why for topic, _ in targets if (why := self._obstacle(topic))}

    def _obstacle(self, topic: str) -> tuple[str, str] | None:
        if topic in self._world.paused:
            return TARGET_PAUSED, "somebody said so"
        return TARGET_DOWN if topic in self._world.targets_down else None

    def still_blocked(self, blocked: Targets) -> dict[tuple[str, int], tuple[str, str]]:
        """See the port."""
        return {target: why for target in blocked if (why := self._obstacle(target[0]))}

    def send(self, shard: str, outputs: Sequence[Output], targets: Collection[Target]) -> None:
        """See the port."""
        if set(targets) != {(output[1], output[2]) for output in outputs}:
            raise ViolationError(f"{targets} are not the targets of what is sent")
        self._node.point("before send")
        for kind, topic, _, key, value, headers, _, offset in outputs:
            transaction = self._opened()
            if kind == PARKED and self._world.plan.pauses:
                self._world.oracle.held.add((shard, offset))
            if kind in (DELIVERED, FIRED) and {topic, shard} & self._world.paused:
                raise ViolationError(f"{offset} of {shard} goes to {topic}, and that is paused")
            if kind in (DELIVERED, FIRED) and self._world.is_refused(value):
                self._refusals[shard, offset] = REFUSAL
                if self._world.flip(0.5):
                    raise RefusedError(dict(self._refusals))
                continue
            now_ms = self._world.now_ms
            self._log.append(
                topic, now_ms, (key, value, headers), transaction, self._node.clock.read_ms
            )
        self._node.trace(f"sends {[(o[0], o[7]) for o in outputs]}")
        self._node.point("after send")

    def _opened(self) -> Transaction:
        self._check_epoch()
        if self._transaction is None:
            self._transaction = self._log.begin(foreign=False)
        return self._transaction

    def _check_epoch(self) -> None:
        if self._epoch != self._log.epoch:
            raise OwnershipLostError("fenced")

    def commit(self, checkpoint: bytes) -> None:
        """See the port."""
        self._node.point("before commit")
        transaction = self._opened()
        if self._refusals:
            refusals = dict(self._refusals)
            self.abort()
            raise RefusedError(refusals)
        self._log.append(CHECKPOINTS, self._world.now_ms, (b"0", checkpoint, []), transaction, 0)
        self._node.point("commit flushed")
        self._check_epoch()
        if transaction.state != OPEN:
            raise OwnershipLostError("the transaction timed out")
        if self._world.flip(self._world.plan.abort):
            self.abort()
            raise TransactionAbortedError("aborted")
        if self._world.flip(self._world.plan.uncertain):
            transaction.in_doubt = True
            self._node.trace("commits, and hears no answer")
            raise OwnershipLostError("no answer")
        self._node.trace("commits")
        self._transaction = None
        self._log.decide(transaction, commit=True, lazy_markers=self._world.plan.lazy_markers)
        self._node.point("after commit")

    def abort(self) -> None:
        """See the port."""
        self._node.point("before abort")
        transaction, self._transaction = self._transaction, None
        self._refusals.clear()
        if transaction is None:
            return
        if self._epoch != self._log.epoch or transaction.state != OPEN:
            raise OwnershipLostError("fenced at abort")
        if transaction.in_doubt:
            raise ViolationError("aborted after an uncertain commit")
        self._node.trace("aborts")
        self._log.decide(transaction, commit=False)

    def discard(self) -> None:
        """See the port."""
        self._node.point("discard")
        self._transaction = None
        self._refusals.clear()
        self._epoch = -1


class SimCheckpoints:
    """See ``ports.Checkpoints``. ``seen`` is how far the tail has read."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = node.world.log
        self._read_back: ReadBack | None = None
        self._cuts: list[ReadBack] = []
        self.seen = 0

    def latest(self, slice_no: int) -> bytes | None:
        """See the port."""
        self._node.call(f"latest checkpoint of slice {slice_no}")
        self._log.complete_markers()  # reads to the end, so waits for markers
        written = self._log.committed(CHECKPOINTS)
        self._node.point("read the checkpoint")
        return written[-1].value if written else None

    def peek(self, slice_no: int) -> bytes | None:
        """As ``latest``: an open transaction is nothing to wait for here."""
        return self.latest(slice_no)

    def await_read_back(self, slice_no: int, data: bytes, timeout_s: float) -> bool:
        """See the port: nobody waits here, for a new owner meets no old transaction."""
        del slice_no, data, timeout_s
        return True

    def is_new(self, slice_no: int) -> bool:
        """See the port."""
        self._node.point(f"is slice {slice_no} new?")
        return not self._log.partition(CHECKPOINTS).written

    def tail(self) -> None:
        """Read back everything there is now."""
        partition = self._log.partition(CHECKPOINTS)
        self.seen = partition.last_stable
        seen = [w for w in partition.written[: self.seen] if w.is_committed]
        if not seen or seen[-1].value is None:
            return
        newest = seen[-1]
        if self._read_back is None or self._read_back.data is not newest.value:
            self._node.trace(f"has read back checkpoint {newest.offset}")
            first = newest.offset if self._read_back is None else self._read_back.offset
            self._cuts += [
                self._as_read_back(written)
                for written in seen
                if written.offset > first and written.offset % CUT_EVERY == 0
            ]
            self._read_back = self._as_read_back(newest)

    def _as_read_back(self, written: Written) -> ReadBack:
        now_ms = self._node.world.now_ms + self._node.skew_ms
        return ReadBack(written.value or b"", written.timestamp_ms, now_ms, now_ms, written.offset)

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """See the port: checkpoints at every so many offsets, which all nodes agree on."""
        del slice_no
        cuts, self._cuts = self._cuts, []
        return cuts

    def read_back(self, slice_no: int) -> ReadBack | None:
        """See the port."""
        self._node.point(f"read back of slice {slice_no}")
        if self._node.world.flip(0.5):
            self.tail()
        return self._read_back


class SimClock:
    """See ``ports.Clock``. ``read_ms`` is what the node was told last."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.read_ms = 0

    def wall_ms(self) -> int:
        """See the port."""
        self.read_ms = self._node.world.now_ms + self._node.skew_ms
        return self.read_ms

    def monotonic_s(self) -> float:
        """See the port."""
        return self._node.world.elapsed_ms / 1000


class SimGate:
    """See ``slice_loop.Gate``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def role(self, slice_no: int) -> Role:
        """See the protocol."""
        self._node.point(f"which role in slice {slice_no}?")
        return Role.OWNER if self._node.wants else Role.REPLICA

    def confirm(self, slice_no: int) -> bool:
        """See the protocol."""
        self._node.point(f"owner of slice {slice_no}?")
        return self._node.wants

    def epoch(self, slice_no: int) -> int:  # noqa: ARG002  # the checkpoint's decides
        """See the protocol."""
        return 0

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """See the protocol."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """See the protocol; the schedule decides who owns next."""

    def frozen(self) -> str | None:
        """See the protocol."""
        return "in doubt" if self._node.frozen else None

    def heard_broker(self, broker_ms: int, read_back: ReadBack | None, sent_s: float) -> None:
        """See the protocol; the schedule decides when a clock is in doubt."""


class SimObserver:
    """See ``slice_loop.Observer``."""

    def ingested(self, records: int) -> None:
        """See the protocol."""

    def settled(self, tally: Tally, now_ms: int) -> None:
        """See the protocol."""

    def transaction(self, seconds: float, *, committed: bool) -> None:
        """See the protocol."""
