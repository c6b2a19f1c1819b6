"""Finds out which brokers this node reaches.

An owner with nothing to commit does not notice that it is cut off: no records come, and no error
either. So this node asks each broker that leads anything for the end of one partition, which no
other broker can answer. Metadata is asked only for who leads what: any broker gives it, so its
answer says little of the others, and a missing one little of Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import LATEST, offset_of
from delayservice.engine.ports import Place

CONNECTION: Final = {"socket.timeout.ms": "3000"}
"""Options of the client to ask with: a connection without an answer is given up after this, else
metadata would be asked through it for a minute."""
_EVERY_S: Final = 1.0
_ANSWER_S: Final = 1.5
_LOOK_S: Final = 1.0
_LOST_AFTER: Final = 2
"""Questions in a row without an answer; one may meet a broker that has just gone, or is busy."""
_LEADERS_S: Final = 30.0
"""How old it may be who leads what, while all brokers answer."""
_WELL_S: Final = 3.0
"""A broker has to be well for this time: nodes hear of the end of a broker at different times, and
none of them is to be preferred for hearing it first."""

_log = structlog.get_logger(__name__)


class KafkaReach:
    """Asks every second, and without a break while an answer is missing.

    Attributes:
        trouble: why Kafka can't be reached; empty: it can.
        silent: brokers that did not answer twice in a row although the cluster counts on them.
        broker: why slices are better owned by a node that reaches all brokers; empty: this one
            does, and has for a moment.

    Args:
        admin: the client to ask with; nothing else is to use it.
        changed: called when ``silent`` has changed.
        monotonic_s: the clock.
    """

    def __init__(
        self,
        admin: AdminClient,
        changed: Callable[[], None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._changed = changed
        self._monotonic_s = monotonic_s
        self._asked_s = float("-inf")
        self._led: Mapping[int, Place] = {}
        """A partition that each broker leads."""
        self._looked_s = float("-inf")
        self._missed = 0
        self._misses: dict[int, tuple[int, float]] = {}
        """Questions in a row without an answer, and when the first was asked, by broker."""
        self._silent_at_s = float("-inf")
        self.trouble = ""
        self.silent: frozenset[int] = frozenset()
        self.broker = ""

    @property
    def silent_s(self) -> float:
        """Time for which the first silent broker has not answered, seconds; 0: all answer."""
        silent = self.silent
        since_s = [first_s for n, (_, first_s) in self._misses.copy().items() if n in silent]
        return self._monotonic_s() - min(since_s) if since_s else 0.0

    def check(self) -> None:
        """Ask when it is time; blocks for seconds when there is no answer."""
        now_s = self._monotonic_s()
        if now_s - self._asked_s < _EVERY_S:
            return
        answers, why = self._ask()
        unseen = ""
        if self._must_look(now_s, answers):
            unseen = self._look()
        self._note_kafka("" if answers else unseen)
        self._note_brokers(why)
        if not self._misses and not self._missed:
            self._asked_s = now_s

    def _must_look(self, now_s: float, answers: int) -> bool:
        """Return whether to find out who leads what. A broker that has gone leads nothing after a
        while, and is not waited for then.
        """
        is_old = now_s - self._looked_s >= _LEADERS_S
        return is_old or not answers or any(n >= _LOST_AFTER for n, _ in self._misses.values())

    def _look(self) -> str:
        """Find out who leads what; return why that is not known."""
        try:
            found = self._admin.list_topics(timeout=_LOOK_S)
        except KafkaException as exc:
            _log.debug("leaders_not_seen", why=str(exc))
            return str(exc)
        self._led = {
            partition.leader: (name, number)
            for name, topic in sorted(found.topics.items())
            if topic.error is None
            for number, partition in topic.partitions.items()
            if partition.leader >= 0
        }
        self._looked_s = self._monotonic_s()
        self._misses = {n: missed for n, missed in self._misses.items() if n in self._led}
        return ""

    def _ask(self) -> tuple[int, str]:
        """Ask every broker; return how many have answered, and why another one has not."""
        sent_s, answers, why = self._monotonic_s(), 0, ""
        asked = [(n, self._end_of(place)) for n, place in self._led.items()]
        for number, future in asked:
            try:
                offset_of(future, max(sent_s + _ANSWER_S - self._monotonic_s(), 0.0))
            except KafkaException as exc:
                if error_of(exc).code() < 0:  # the client's own: nothing came
                    count, first_s = self._misses.get(number, (0, sent_s))
                    self._misses[number] = count + 1, first_s
                    why = str(exc)
                    continue
                self._looked_s = float("-inf")  # another broker leads by now
            self._misses.pop(number, None)
            answers += 1
        return answers, why

    def _end_of(self, place: Place) -> Future[Any]:
        asked = {TopicPartition(*place): LATEST}
        return next(iter(self._admin.list_offsets(asked, request_timeout=_ANSWER_S).values()))

    def _note_kafka(self, why: str) -> None:
        self._missed = self._missed + 1 if why else 0
        was_lost, is_lost = bool(self.trouble), self._missed >= _LOST_AFTER
        self.trouble = why if is_lost else ""
        if is_lost and not was_lost:
            _log.error("kafka_lost", why=why, hint="slices go to nodes that reach Kafka")
        elif was_lost and not is_lost:
            _log.info("kafka_found")

    def _note_brokers(self, why: str) -> None:
        silent = frozenset(n for n, (count, _) in self._misses.items() if count >= _LOST_AFTER)
        now_s = self._monotonic_s()
        if silent:
            self._silent_at_s = now_s
            self.broker = f"brokers {_listed(silent)} do not answer: {why}"
        elif now_s - self._silent_at_s >= _WELL_S:
            self.broker = ""
        if silent == self.silent:
            return
        if lost := silent - self.silent:
            hint = "slices go to nodes that reach them"
            _log.error("brokers_silent", brokers=_listed(lost), why=why, hint=hint)
        if found := self.silent - silent:
            _log.info("brokers_answer", brokers=_listed(found))
        self.silent = silent
        self._changed()


def _listed(brokers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))
