"""Finds out which brokers this node reaches.

An owner that has nothing to commit does not notice that it is cut off: it sees no records and no
errors. So this node asks each broker that leads a partition for that partition's end, which no
other broker can answer. Metadata only serves to find the leaders: as any broker returns it, it does
not show whether another one is reached.
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

# Options of the admin client: a connection is dropped after 3 s without an answer; otherwise
# metadata requests would wait for it for a minute.
CONNECTION: Final = {"socket.timeout.ms": "3000"}
_EVERY_S: Final = 1.0
_ANSWER_S: Final = 1.5
_LOOK_S: Final = 1.0
# Number of consecutive unanswered requests after which a broker counts as silent; a busy broker may
# miss one.
_LOST_AFTER: Final = 2
# Age at which known partition leaders are read again while all brokers answer, in s.
_LEADERS_S: Final = 30.0
# Time for which all brokers must have answered before ``KafkaReach.broker`` is cleared, in s: nodes
# notice a change at different times, and the first one to notice must not be preferred.
_WELL_S: Final = 3.0

_log = structlog.get_logger(__name__)


class KafkaReach:
    """Checker of the brokers that lead partitions. A call of ``check`` asks them if a second has
    passed, or if an answer is missing.
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
        # One partition that each broker leads, by broker id.
        self._led: Mapping[int, Place] = {}
        self._looked_s = float("-inf")
        self._missed = 0
        # Number of requests in a row without an answer, and monotonic time of the first, by broker
        # id.
        self._misses: dict[int, tuple[int, float]] = {}
        self._silent_at_s = float("-inf")
        # Reason why no broker can be reached; empty: a broker can be reached.
        self.trouble = ""
        # Ids of leading brokers that did not answer twice in a row.
        self.silent: frozenset[int] = frozenset()
        # Reason why other nodes, which reach all brokers, should own the slices; empty: no broker
        # was silent in the last 3 s.
        self.broker = ""

    @property
    def silent_s(self) -> float:
        silent = self.silent
        since_s = [first_s for n, (_, first_s) in self._misses.copy().items() if n in silent]
        return self._monotonic_s() - min(since_s) if since_s else 0.0

    def check(self) -> None:
        """Ask each broker that leads a partition, unless all have answered within the last second;
        update the attributes. Block up to 2.5 s if there is no answer.
        """
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
        """Return whether to read the leaders of partitions again: they are old, or brokers are
        silent. A silent broker may have stopped; it then leads nothing and is no longer asked.
        ``answers``: number of brokers that answered.
        """
        is_old = now_s - self._looked_s >= _LEADERS_S
        return is_old or not answers or any(n >= _LOST_AFTER for n, _ in self._misses.values())

    def _look(self) -> str:
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
        """Ask every leading broker; return the number of answers, and the client's error for the
        last broker that did not answer; empty: all answered.
        """
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
