"""The delay topics as a worker saw them last: which are served, what is wrong, and how old that is.

Any thread may ask; one at a time refreshes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from connectors.kafka.topic_facts import Look, ServedTopic
from delayservice.base.errors import KafkaEdgeError

_LOOKS_MISSED: Final = 3
_OLD_S_MIN: Final = 15.0
"""A look that is older than this, and than three of its intervals, is a problem. A broker that
restarts costs one or two looks."""

_log = structlog.get_logger(__name__)


class TopicWatcher:
    """Looks at the delay topics again and again.

    Args:
        look: asks the cluster, once with each ``refresh``.
        is_pending: whether a checkpoint names a topic: then its records may be pending.
        monotonic_s: the clock.
        every_s: how often ``refresh`` is called.
    """

    def __init__(
        self,
        look: Callable[[], Look],
        is_pending: Callable[[ServedTopic], bool],
        monotonic_s: Callable[[], float],
        every_s: float,
    ) -> None:
        self._look = look
        self.seen = Look(())
        """The last good look."""
        self._is_pending = is_pending
        self._monotonic_s = monotonic_s
        self._old_s = max(_LOOKS_MISSED * every_s, _OLD_S_MIN)
        self._looked_s = monotonic_s()
        self._has_looked = False
        self._failure = ""
        self._begun: set[str] = set()
        """Ids of topics that were served once, here or by the writers of the checkpoints."""
        self.topics: Sequence[ServedTopic] = ()
        """Every delay topic, as of the last good look."""

    @property
    def fit(self) -> list[ServedTopic]:
        """The topics that are served."""
        return [topic for topic in self.topics if not topic.problems]

    @property
    def age_s(self) -> float:
        """Time since the last good look, or since the start; seconds."""
        return self._monotonic_s() - self._looked_s

    def problems(self) -> list[str]:
        """Return problems for people, one sentence each."""
        found = []
        if self._failure and not self._has_looked:
            found.append(f"the delay topics could not be looked at yet: {self._failure}")
        elif self._failure and self.age_s > self._old_s:
            found.append(
                f"the delay topics were last looked at {self.age_s:.0f} s ago: {self._failure}"
            )
        found += self.seen.own_problems + self.seen.outlet_problems
        for topic in self.topics:
            found += [f"{topic.name} is not served: {problem}" for problem in topic.problems]
            found += [f"{topic.name} may lose records: {risk}" for risk in topic.risks]
        return found

    def refresh(self) -> bool:
        """Find new topics, added partitions and recreated topics, and judge them; return whether
        that could be done. What was served goes on if not.
        """
        try:
            seen = self._look()
            found = [self._judged(topic) for topic in seen.topics]
        except KafkaEdgeError as exc:
            self._failure = str(exc)
            _log.warning("topics_not_refreshed", why=self._failure)
            return False
        except Exception as exc:  # noqa: BLE001  # the next look may succeed
            self._failure = f"{type(exc).__name__}: {exc}"
            _log.exception("topics_not_refreshed", why=self._failure)
            return False
        self._failure, self._has_looked = "", True
        self._looked_s = self._monotonic_s()
        before, self.seen = self.seen, seen
        said = seen.own_problems + seen.outlet_problems
        if said and said != before.own_problems + before.outlet_problems:
            _log.error("own_topics_at_risk", problems=said)
        _tell_changes(self.topics, found)
        self.topics = found
        self._begun |= {topic.topic_id for topic in self.fit}
        return True

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
