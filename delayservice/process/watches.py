"""State of what a worker depends on: disk, delay topics, target topics, and the worker itself.

Each watch is refreshed by one thread, because the answers may take long; any thread may read it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import admin_client
from connectors.kafka.node_topics import PauseWatcher
from connectors.kafka.reach import CONNECTION, KafkaReach
from connectors.kafka.target_limits import compresses
from connectors.kafka.targets import TargetTopics
from connectors.kafka.topic_facts import ServedTopic, TopicProblem, TopicsSnapshot
from connectors.kafka.topics import MADE_AGAIN
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.settings import Settings
from delayservice.engine.disk import DiskLevel, Watermarks


def used_percent(folder: Path) -> float:
    # Like ``df``, this leaves out the space that is reserved for root.
    usage = shutil.disk_usage(folder)
    return 100 * usage.used / max(usage.used + usage.free, 1)


class DiskWatch:
    """Watch of how full the stores' disk is. One thread calls ``look``, because the disk may hang;
    others read the results.
    """

    def __init__(
        self,
        marks: Watermarks,
        look: Callable[[], float],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._marks = marks
        self._look = look
        self._monotonic_s = monotonic_s
        self._looking_since_s: float | None = None
        # How full the disk was at the last measurement: room, warning, storing stopped, or full.
        self.level = DiskLevel.ROOM
        # Used percent of the disk at the last measurement.
        self.used = 0.0

    def look(self) -> None:
        # If the disk can't be read, that is logged, and nothing changes.
        self._looking_since_s = self._monotonic_s()
        try:
            self.used = self._look()
        except OSError as exc:
            _log.warning("disk_not_seen", why=str(exc))
            return
        finally:
            self._looking_since_s = None
        before, self.level = self.level, self._marks.level(self.level, self.used)
        self._log_change(before)

    def _log_change(self, before: DiskLevel) -> None:
        if self.level == before:
            return
        used = round(self.used, 1)
        if self.level >= DiskLevel.STOP > before:
            _log.error("storing_stopped", used_percent=used, stop_percent=self._marks.stop)
        elif self.level < DiskLevel.STOP <= before:
            _log.info("storing_resumed", used_percent=used)
        if self.level == DiskLevel.WARN > before:
            _log.warning("disk_fills_up", used_percent=used, stop_percent=self._marks.stop)
        elif self.level == DiskLevel.FULL:
            _log.error("disk_full", used_percent=used)

    @property
    def waiting_s(self) -> float:
        since_s = self._looking_since_s
        return 0.0 if since_s is None else self._monotonic_s() - since_s

    @property
    def alarm(self) -> str:
        if self.level < DiskLevel.STOP:
            return ""
        return (
            f"the disk of the stores is {self.used:.0f} % full, so nothing more is stored; what is "
            "stored is delivered"
        )


_LOOKS_MISSED: Final = 3
# Time without a successful refresh from which a problem is reported, in s, or three intervals of
# the refresh if they are longer: a broker's restart makes one or two refreshes fail.
_OLD_S_MIN: Final = 15.0
# Time for which it is reported that a topic was deleted and created again, in s.
_TOLD_AGAIN_S: Final = 600.0

_log = structlog.get_logger(__name__)


class MadeAgain(NamedTuple):
    """Topic, a delay topic or one of the service's own, that was deleted and created again.
    ``was_missing``: it was seen missing in between.
    """

    topic: str
    was_missing: bool


class TopicWatcher:
    """Watch of the delay topics, which a thread refreshes at intervals."""

    def __init__(
        self,
        look: Callable[[], TopicsSnapshot],
        # Returns whether a checkpoint names a topic, so that records of it may be pending.
        is_pending: Callable[[ServedTopic], bool],
        monotonic_s: Callable[[], float],
        every_s: float,
    ) -> None:
        self._look = look
        # Topics, and problems of the service's other topics, as of the last successful refresh.
        self.seen = TopicsSnapshot(())
        self._is_pending = is_pending
        self._monotonic_s = monotonic_s
        self._old_s = max(_LOOKS_MISSED * every_s, _OLD_S_MIN)
        self._looked_s = monotonic_s()
        self._has_looked = False
        self._failure = ""
        # Id of each topic, by name, as last seen.
        self._ids: dict[str, str] = {}
        # When a topic was found to have been created again, monotonic s, by name; without those
        # that were seen, and reported, as missing before another program created them.
        self._made_again_s: dict[str, float] = {}
        self._said: tuple[str, ...] = ()
        # Ids of topics that were served before, by this process or an owner with a checkpoint.
        self._begun: set[str] = set()
        # Every delay topic, served or not, as of the last successful refresh.
        self.topics: Sequence[ServedTopic] = ()

    @property
    def served(self) -> list[ServedTopic]:
        return [topic for topic in self.topics if not topic.problems]

    @property
    def slices(self) -> int:
        """How many there are, of all nodes."""
        return max((topic.partitions for topic in self.served), default=0)

    def partitions_of(self, name: str) -> int:
        return sum(topic.partitions for topic in self.topics if topic.name == name)

    @property
    def age_s(self) -> float:
        return self._monotonic_s() - self._looked_s

    def problems(self) -> list[str]:
        found = []
        if self._failure and not self._has_looked:
            found.append(f"the delay topics could not be looked at yet: {self._failure}")
        elif self._failure and self.age_s > self._old_s:
            found.append(
                f"the delay topics were last looked at {self.age_s:.0f} s ago: {self._failure}"
            )
        found += self._own_problems()
        for topic in self.topics:
            found += [f"{topic.name} is not served: {problem}" for problem in topic.problems]
            found += [f"{topic.name} may lose records: {risk}" for risk in topic.risks]
        return found

    def _own_problems(self) -> tuple[str, ...]:
        found = [one.text for one in (*self.seen.own_problems, *self.seen.outlet_problems)]
        now_s = self._monotonic_s()
        again = [n for n, s in self._made_again_s.items() if now_s - s < _TOLD_AGAIN_S]
        return tuple(dict.fromkeys([*found, *(f"{name} {MADE_AGAIN}" for name in again)]))

    def _note_ids(self, before: Mapping[str, str], seen: TopicsSnapshot) -> list[MadeAgain]:
        now_s, again = self._monotonic_s(), []
        for name, topic_id in seen.ids.items():
            known, self._ids[name] = self._ids.get(name, topic_id), topic_id
            if known != topic_id:
                if name in before:
                    self._made_again_s[name] = now_s
                again.append(MadeAgain(name, name not in before))
        again_now = (TopicProblem(name, f"{name} {MADE_AGAIN}") for name in self._ids)
        made = [one.topic for one in again_now if one in seen.outlet_problems]
        self._made_again_s.update(dict.fromkeys(made, now_s))
        return again

    def refresh(self) -> list[MadeAgain] | None:
        """Look at the topics; return those that were made again since the last look, or None if it
        failed: then the topics stay as they were. A topic that may lose records is not served,
        unless it was served before.
        """
        try:
            seen = self._look()
            found = [self._judged(topic) for topic in seen.topics]
        except KafkaEdgeError as exc:
            self._failure = str(exc)
            _log.warning("topics_not_refreshed", why=self._failure)
            return None
        except Exception as exc:  # noqa: BLE001  # the next refresh may succeed
            self._failure = f"{type(exc).__name__}: {exc}"
            _log.exception("topics_not_refreshed", why=self._failure)
            return None
        self._failure, self._has_looked = "", True
        self._looked_s = self._monotonic_s()
        ids_before, self.seen = self.seen.ids, seen
        again = self._note_ids(ids_before, seen)
        before, self._said = self._said, self._own_problems()
        if self._said and self._said != before:
            _log.error("own_topics_at_risk", problems=self._said)
        _tell_changes(self.topics, found)
        self.topics = found
        self._begun |= {topic.topic_id for topic in self.served}
        return again

    def _judged(self, topic: ServedTopic) -> ServedTopic:
        if not topic.risks or topic.topic_id in self._begun or self._is_pending(topic):
            return topic
        return topic.at_risk_refused()


def _tell_changes(before: Sequence[ServedTopic], found: Sequence[ServedTopic]) -> None:
    known = {topic.name: (topic.problems, topic.risks) for topic in before}
    for topic in found:
        if (topic.problems, topic.risks) == known.get(topic.name, ((), ())):
            continue
        if topic.problems:
            _log.error("topic_not_served", topic=topic.name, problems=topic.problems)
        elif topic.risks:
            _log.error("topic_at_risk", topic=topic.name, problems=topic.risks)
        else:
            _log.info("topic_served_again", topic=topic.name)


class TargetWatch:
    """Watch of the target topics: combines their state in Kafka, pauses, and which brokers
    answer.
    """

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._names = settings.topics
        kafka = settings.kafka
        # Reader of the pauses topic.
        self.pauses = PauseWatcher(settings.topics.pauses, self._changed)
        # Check of which brokers answer.
        self.reach = KafkaReach(
            admin_client(kafka.client_config("admin") | CONNECTION), self._changed
        )
        # Check of which targets can be written to, repeated when a pause begins or ends, or a
        # broker stops or starts to answer.
        self.topics = TargetTopics(
            admin,
            why_paused=self._why_paused,
            compresses=compresses(kafka.client_config("producer")),
            own=(settings.topics.dead_letter, settings.topics.outcomes),
            silent=lambda: self.reach.silent,
            is_delay_topic=self._is_delay_topic,
        )

    def _changed(self) -> None:
        self.topics.changed()

    def _why_paused(self, topic: str) -> str | None:
        # The service's own topics, delay topics included, are never paused as targets.
        if topic in self._names.own or self._is_delay_topic(topic):
            return None
        return self.pauses.why(topic)

    def _is_delay_topic(self, topic: str) -> bool:
        return fnmatchcase(topic, self._names.pattern) or topic in self._names.delay
