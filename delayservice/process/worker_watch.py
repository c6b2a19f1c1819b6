"""Facts about a worker, gathered on threads that may block, and a verdict on them several times a
second: whether the worker may own slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from connectors.kafka.broker_clock import BrokerClock
from connectors.kafka.reach import KafkaReach
from delayservice.base.clock import NOT_COMPARED, ClockWatch, NodeClock
from delayservice.config.settings import Settings
from delayservice.engine.electability import ELECTABLE, Verdict, WorkerFacts
from delayservice.process.disk import DiskWatch
from ha.ownership import Ownership

_JUDGED_EVERY_S: Final = 0.1
_ASKED_EVERY_S: Final = 0.5
_DISK_EVERY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class WorkerWatch:
    """Watch of one worker: gathers facts about it, and asks its ownership whether it may own
    slices.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        reach: KafkaReach,
        ownership: Ownership,
        clock: NodeClock,
        clock_watch: ClockWatch,
        disk: DiskWatch,
        turn_s: Callable[[], float],
        writer_trouble: Callable[[], str],
        # Consecutive earlier processes of this worker that ended soon after their start.
        crashes: int,
    ) -> None:
        # Last verdict on whether the worker may own slices.
        self.verdict: Verdict = ELECTABLE
        self._has_disk = settings.node.store != "memory"
        self._ownership = ownership
        self._clock = clock
        self._clock_watch = clock_watch
        self._disk = disk
        self._turn_s = turn_s
        self._writer_trouble = writer_trouble
        self._crashes = crashes
        self._started_s = clock.monotonic_s()
        self._reach = reach
        client: Mapping[str, str] = settings.kafka.client_config("producer")
        self._broker_clock = BrokerClock(client, settings.topics.claims_topic, name, self._heard)
        self.judge()

    def start(self, repeat: Callable[[str, float, Callable[[], object]], None]) -> None:
        if self._has_disk:
            repeat("disk", _DISK_EVERY_S, self._disk.look)
        repeat("kafka-reach", _ASKED_EVERY_S, self._reach.check)
        repeat("broker-clock", _ASKED_EVERY_S, self._ask_the_time)
        repeat("verdict", _JUDGED_EVERY_S, self.judge)

    def judge(self) -> None:
        # From the latest facts, without waiting.
        doubt = self._clock_watch.doubt()
        facts = WorkerFacts(
            kafka=self._reach.trouble,
            turn_s=self._turn_s(),
            disk_s=self._disk.waiting_s,
            writer=self._writer_trouble(),
            clock=doubt or "",
            is_clock_known=doubt != NOT_COMPARED,
            broker=self._reach.broker,
            broker_s=self._reach.silent_s,
            crashes=self._crashes,
            lived_s=self._clock.monotonic_s() - self._started_s,
        )
        before, self.verdict = self.verdict, self._ownership.judge(facts)
        if self.verdict.cause is not before.cause:
            cause, why = self.verdict.cause.value, self.verdict.reason
            if self.verdict.may_own:
                _log.info("worker_electable", was=before.cause.value)
            else:
                _log.warning("worker_not_electable", cause=cause, why=why)

    def _ask_the_time(self) -> None:
        """Query a broker's time if the wall clock is not trusted. If it is, close the client that
        queries, because the boot clock is enough to check the wall clock.
        """
        if self._clock_watch.doubt() is None:
            self._broker_clock.close()
        else:
            self._broker_clock.ask()

    def _heard(self, broker_ms: int, sent_s: float, acknowledged_s: float) -> None:
        boot_ms = int(self._clock.boot_s() * 1000)
        self._clock_watch.heard_answer(broker_ms, boot_ms, sent_s, acknowledged_s)
