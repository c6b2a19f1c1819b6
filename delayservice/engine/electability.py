"""Verdict on whether a node may own a slice, with one reason. Pure; no clock.

Election, ``/readyz``, ``status``, metrics, alerts and the page show this verdict, and nothing else
decides what may own. Facts of a worker hold for all of its slices; facts of a copy for one of them.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final, NamedTuple

SILENT_S_MAX: Final = 15.0
"""Time without a report after which a worker counts as hung, seconds; it reports every second."""
TURN_S_MAX: Final = 8.0
"""Longest turn of a worker's loop that is taken for work, seconds."""
DISK_S_MAX: Final = 8.0
"""Longest wait for the disk of the stores, seconds."""
BROKER_S_MAX: Final = 5.5
"""How long a broker may be silent before an owner lets go, seconds: by then other nodes know
whether it is silent for them as well, and say so."""
_REST_S: Final = 5.0
_REST_S_MAX: Final = 60.0


class Cause(Enum):
    """Why a slice may not be owned; a label of metrics, so the values stay as they are."""

    NONE = ""
    WORKER_SILENT = "worker_silent"
    KAFKA_UNREACHABLE = "kafka_unreachable"
    ZOOKEEPER_UNUSABLE = "zookeeper_unusable"
    LOOP_HANGS = "loop_hangs"
    DISK_HANGS = "disk_hangs"
    CLOCK_IN_DOUBT = "clock_in_doubt"
    BROKER_UNREACHABLE = "broker_unreachable"
    CRASHED = "crashed"
    REFUSED = "refused"
    FAILING = "failing"
    CATCHING_UP = "catching_up"


class WorkerFacts(NamedTuple):
    """The known facts about a worker. The defaults are those of one that lacks nothing.

    Attributes:
        silent_s: time since it last reported, seconds; only its supervisor knows.
        kafka: why Kafka can't be reached; empty: it can.
        zookeeper: why there is no session in which slices can be owned; empty: there is one.
        turn_s: how long the present turn of its loop has lasted, seconds.
        disk_s: how long a question to the disk of its stores has had no answer, seconds.
        clock: why the wall clock is not believed; empty: it is.
        is_clock_known: False before the wall clock was compared with a broker's.
        broker: why not every broker can be reached that others may reach; empty: all can.
        broker_s: how long one of them has not answered, seconds; 0: it answers by now.
        crashes: lives in a row before this one that ended soon after their start.
        lived_s: age of this life, seconds.
    """

    silent_s: float = 0.0
    kafka: str = ""
    zookeeper: str = ""
    turn_s: float = 0.0
    disk_s: float = 0.0
    clock: str = ""
    is_clock_known: bool = True
    broker: str = ""
    broker_s: float = 0.0
    crashes: int = 0
    lived_s: float = math.inf


class CopyFacts(NamedTuple):
    """The known facts about the copy of a slice.

    Attributes:
        lag_s: how far it is behind the owner's, seconds; infinite: not known.
        lag_s_max: a copy that is further behind may not own, seconds.
        refusal: why nothing of the slice may be stored here (wrong secret); empty: it may.
        failure: why it could not be served here the last time.
        rest_s: how long it is left to other nodes for that, seconds.
    """

    lag_s: float = math.inf
    lag_s_max: float = 10.0
    refusal: str = ""
    failure: str = ""
    rest_s: float = 0.0


class Verdict(NamedTuple):
    """Verdict on whether a slice may be owned here.

    Attributes:
        cause: why not.
        reason: the same for people, one sentence; empty: it may.
        is_last_resort: it may be owned when no other node takes it.
        may_keep: an owner keeps it for now, even if another node may own it.
    """

    cause: Cause = Cause.NONE
    reason: str = ""
    is_last_resort: bool = False
    may_keep: bool = False

    @property
    def may_own(self) -> bool:
        """Return whether it may be owned without reserve."""
        return self.cause is Cause.NONE


ELECTABLE: Final = Verdict()


def rest_s(failures: int) -> float:
    """Return how long what failed so many times in a row is left alone, seconds."""
    return min(_REST_S * 2 ** (failures - 1), _REST_S_MAX) if failures > 0 else 0.0


def electability(worker: WorkerFacts, copy: CopyFacts | None = None) -> Verdict:
    """Return whether a worker may own a slice, with the first reason against it. ``copy``: its copy
    of the slice; None: of any slice.
    """
    verdict = _of_worker(worker)
    return verdict if copy is None or not verdict.may_own else _of_copy(copy)


def _of_worker(worker: WorkerFacts) -> Verdict:
    left_s = rest_s(worker.crashes - 1) - worker.lived_s  # once is what any process may do
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
