"""Verdict on whether a node may own a slice, with one reason, and the lag of its copy. Pure.

Election, ``/readyz``, ``status``, metrics, alerts and the page all use this verdict. Facts about a
worker apply to all of its slices; facts about a copy to one slice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

# Time without a report after which a worker counts as hung; it reports every second.
SILENT_S_MAX: Final = 15.0
TURN_S_MAX: Final = 8.0
DISK_S_MAX: Final = 8.0
# An owner gives its slices up after this silence of a broker: by then other nodes have reported
# whether the broker is silent for them too.
BROKER_S_MAX: Final = 5.5
_REST_S: Final = 5.0
_REST_S_MAX: Final = 60.0


class Cause(Enum):
    """Reason against owning a slice. The values are labels of metrics: keep them."""

    NONE = ""
    WORKER_SILENT = "worker_silent"
    KAFKA_UNREACHABLE = "kafka_unreachable"
    ZOOKEEPER_UNUSABLE = "zookeeper_unusable"
    LOOP_HANGS = "loop_hangs"
    DISK_HANGS = "disk_hangs"
    WRITER_REFUSED = "writer_refused"
    CLOCK_IN_DOUBT = "clock_in_doubt"
    BROKER_UNREACHABLE = "broker_unreachable"
    CRASHED = "crashed"
    REFUSED = "refused"
    FAILING = "failing"
    CATCHING_UP = "catching_up"


class WorkerFacts(NamedTuple):
    """Facts about a worker; the defaults are those of a healthy one. Empty texts mean no trouble.

    ``silent_s`` is known to its supervisor only. ``writer`` stays empty while it is too early to
    tell. ``turn_s`` is the age of the loop's present iteration, ``disk_s`` and ``broker_s`` how
    long disk and broker have not answered. ``is_clock_known`` is False before the wall clock was
    compared with a broker's. ``crashes`` counts earlier processes that ended soon after their
    start.
    """

    silent_s: float = 0.0
    kafka: str = ""
    zookeeper: str = ""
    turn_s: float = 0.0
    disk_s: float = 0.0
    writer: str = ""
    clock: str = ""
    is_clock_known: bool = True
    broker: str = ""
    broker_s: float = 0.0
    crashes: int = 0
    lived_s: float = math.inf


class CopyFacts(NamedTuple):
    """Facts about a node's copy of a slice. Infinite ``lag_s``: not known. ``refusal``: why
    nothing may be stored (wrong secret). ``failure``: why the last attempt to serve failed;
    ``rest_s``: how long the slice is left to other nodes after it.
    """

    lag_s: float = math.inf
    lag_s_max: float = 10.0
    refusal: str = ""
    failure: str = ""
    rest_s: float = 0.0


class Verdict(NamedTuple):
    """Verdict, with a sentence for people. ``is_last_resort``: the node may own the slice if no
    other takes it. ``may_keep``: an owner keeps it for now, even if another node may own it.
    """

    cause: Cause = Cause.NONE
    reason: str = ""
    is_last_resort: bool = False
    may_keep: bool = False

    @property
    def may_own(self) -> bool:
        return self.cause is Cause.NONE


ELECTABLE: Final = Verdict()


def rest_s(failures: int, first_s: float = _REST_S, longest_s: float = _REST_S_MAX) -> float:
    """Return the rest after failures in a row, seconds: ``first_s``, doubled by each further one,
    at most ``longest_s``. By default: for how long other nodes are preferred.
    """
    doubled = min(failures - 1, 100)  # far more would be too large for a float
    return min(first_s * 2**doubled, longest_s) if failures > 0 else 0.0


def electability(worker: WorkerFacts, copy: CopyFacts | None = None) -> Verdict:
    """Return whether a worker may own a slice, with the first reason against it. ``copy`` None:
    judge the worker only.
    """
    verdict = _of_worker(worker)
    return verdict if copy is None or not verdict.may_own else _of_copy(copy)


def _of_worker(worker: WorkerFacts) -> Verdict:
    left_s = rest_s(worker.crashes - 1) - worker.lived_s  # a single crash has no consequence
    verdict = ELECTABLE
    if worker.silent_s > SILENT_S_MAX:
        verdict = Verdict(Cause.WORKER_SILENT, _silence(worker.silent_s))
    elif worker.kafka:
        verdict = Verdict(Cause.KAFKA_UNREACHABLE, f"Kafka can't be reached: {worker.kafka}")
    elif worker.zookeeper:
        verdict = Verdict(Cause.ZOOKEEPER_UNUSABLE, f"ZooKeeper can't be used: {worker.zookeeper}")
    elif worker.turn_s > TURN_S_MAX:
        verdict = Verdict(Cause.LOOP_HANGS, f"the loop's turn has lasted {worker.turn_s:.0f} s")
    elif worker.disk_s > DISK_S_MAX:
        reason = f"the disk of the stores has not answered for {worker.disk_s:.0f} s"
        verdict = Verdict(Cause.DISK_HANGS, reason)
    elif worker.writer:
        reason = f"Kafka opens no transactional producer: {worker.writer}"
        verdict = Verdict(Cause.WRITER_REFUSED, reason)
    elif worker.clock:
        verdict = Verdict(
            Cause.CLOCK_IN_DOUBT, worker.clock, is_last_resort=not worker.is_clock_known
        )
    elif worker.broker:
        is_new = worker.broker_s <= BROKER_S_MAX
        verdict = Verdict(
            Cause.BROKER_UNREACHABLE, worker.broker, is_last_resort=True, may_keep=is_new
        )
    elif left_s > 0:
        reason = (
            f"the worker has ended {worker.crashes} times soon after its start; others are "
            f"preferred to it for {left_s:.0f} s more"
        )
        verdict = Verdict(Cause.CRASHED, reason, is_last_resort=True)
    return verdict


def _silence(silent_s: float) -> str:
    if silent_s == math.inf:
        return "the worker was lost, or has not reported yet"
    return f"the worker is silent for {silent_s:.0f} s"


def _of_copy(copy: CopyFacts) -> Verdict:
    lag_s, lag_s_max, refusal, failure, left_s = copy
    if refusal:
        return Verdict(Cause.REFUSED, refusal)
    if failure and left_s > 0:
        return Verdict(Cause.FAILING, f"it could not be served: {failure}")
    if lag_s == math.inf:
        return Verdict(Cause.CATCHING_UP, "how far its copy is behind is not known yet")
    if lag_s > lag_s_max:
        return Verdict(Cause.CATCHING_UP, f"its copy is {lag_s:.0f} s behind and is catching up")
    return ELECTABLE


class Lag:
    """Lag of this node's copy of a slice behind the committed checkpoints.

    Under load a copy is always a little behind the newest checkpoint, so it is compared with an
    older one until it has reached that. The lag is the age of the newest checkpoint reached.
    """

    def __init__(self) -> None:
        self._goal: Mapping[str, int] | None = None
        self._goal_s = 0.0
        self._newest: Mapping[str, int] | None = None
        self._stored: Mapping[str, int] = {}
        self._newest_s = 0.0
        self._reached_s = -math.inf

    def never_served(self, now_s: float) -> None:
        """Note that the slice has no checkpoint, so that its copy has no lag. Monotonic seconds."""
        self.heard({}, now_s)

    def heard(self, offsets: Mapping[str, int], now_s: float) -> None:
        """Note H of each delay topic in the newest checkpoint. ``now_s``: monotonic seconds."""
        self._newest, self._newest_s = offsets, now_s

    def lag_s(
        self, stored: Mapping[str, int], now_s: float, log_ends: Mapping[str, int] | None = None
    ) -> float:
        """Return the lag in seconds, infinite while unknown. ``stored``: S by delay topic.
        ``log_ends``: a copy that holds a whole log has no lag, even if H of the checkpoint lies
        above the log's end.
        """
        if any(stored.get(topic, 0) < offset for topic, offset in self._stored.items()):
            self._reached_s = -math.inf  # the store has started over
        self._stored = dict(stored)
        if self._newest is None:
            return math.inf
        if self._goal is None:
            self._goal, self._goal_s = self._newest, self._newest_s
        ends = log_ends or {}
        if _has(stored, self._newest, ends):
            self._reached_s = now_s
        elif _has(stored, self._goal, ends):
            self._reached_s = max(self._reached_s, self._goal_s)
            self._goal, self._goal_s = self._newest, self._newest_s
        return now_s - self._reached_s


def _has(
    stored: Mapping[str, int], offsets: Mapping[str, int], log_ends: Mapping[str, int]
) -> bool:
    return all(
        stored[topic] >= min(offset, log_ends.get(topic, offset))
        for topic, offset in offsets.items()
        if topic in stored
    )
