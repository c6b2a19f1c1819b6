"""What a node's loop has beside Kafka: helper threads, a clock, the word of the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from delayservice.base.clock import ClockWatch
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.outcome import OutputCounters
from delayservice.engine.ports import Role
from tests.simulation.history import TOLERANCE_MS

if TYPE_CHECKING:
    from tests.simulation.node import Node

Answer = TypeVar("Answer")


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

    def __init__(self, node: Node, work: Callable[[], Any], kind: str) -> None:
        self.future = _Answering()
        self.future.job = self
        self.is_running = False
        self.is_answered = False
        self._node = node
        self._work = work
        self._kind = kind
        self._answer: Any = None
        self._error: KafkaEdgeError | None = None

    def run(self) -> None:
        """Do the work; the answer is on its way back."""
        self.is_running = True
        try:
            with self._node.frame(self._kind):
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
    """See ``ports.Background``: the schedule decides when work is done, and when that is heard.
    ``kind``: what its jobs are; see ``Node.frame``.
    """

    def __init__(self, node: Node, kind: str) -> None:
        self._node = node
        self._kind = kind
        self._world = node.world

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        job = Job(self._node, work, self._kind)
        self._node.jobs.append(job)
        if not self._world.is_late():
            job.run()
            if not self._world.is_late():
                job.tell()
        return job.future


class SimClock:
    """See ``base.clock``. ``read_ms`` is what the node was told last, ``read_skew_ms`` how far that
    was ahead.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.read_ms = 0
        self.read_skew_ms = 0

    def wall_ms(self) -> int:
        self.read_skew_ms = self._node.skew_ms
        self.read_ms = self._node.world.now_ms + self.read_skew_ms
        return self.read_ms

    def monotonic_s(self) -> float:
        return self._node.world.elapsed_ms / 1000

    def boot_s(self) -> float:
        return self.monotonic_s()


class SimGate:
    """See ``ports.OwnershipView``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def roles(self) -> Mapping[int, Role]:
        self._node.point("which roles?")
        return self._node.roles

    def epoch(self, slice_no: int) -> int:  # noqa: ARG002  # the checkpoint's decides
        return 0

    def contract_version(self) -> int:
        return self._node.world.version_known()

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """See the port."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """See the port; the schedule decides who owns next."""


class SimWatch(ClockWatch):
    """The watch of a node's clock: the real one where clocks may be wrong."""

    def __init__(self, node: Node) -> None:
        super().__init__(SimClock(node), TOLERANCE_MS)
        self._node = node

    def doubt(self) -> str | None:
        """Return why the clock is not trusted."""
        if self._node.frozen:
            return "in doubt"
        return super().doubt() if self._node.world.plan.clock_wrong else None


class SimObserver:
    """See ``ports.Observer``."""

    def ingested(self, records: int) -> None:
        """See the port."""

    def turned(self, seconds: float) -> None:
        """A turn was made."""

    def settled(self, tally: OutputCounters, now_ms: int) -> None:
        """See the port."""

    def transaction(self, slices: Collection[int], seconds: float, *, committed: bool) -> None:
        """See the port."""
