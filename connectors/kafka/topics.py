"""Topics: which there are, which are missing, and which are unfit to be served.

A delay topic that breaks a rule is not served, with an explanation; the others go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.errors import answer_of, error_of
from connectors.kafka.rights import READ, WRITE, Access, ask_access, complaints
from connectors.kafka.source import ASK_TIMEOUT_S, topic_ids
from delayservice.core.codes import (
    TARGET_DOWN,
    TARGET_PAUSED,
    TARGET_UNAUTHORIZED,
    TARGET_UNKNOWN,
)
from delayservice.errors import KafkaEdgeError
from delayservice.settings import Settings

REQUEST_TIMEOUT_S: Final = 15.0
_RECHECK_S: Final = 0.25
_UNSERVED_TIMEOUT_S: Final = 1.0
"""A transaction is open meanwhile, and whoever asks asks again."""
LETTER_EXTRA_BYTES: Final = 8 * 1024
"""What a dead letter's own headers may take, its reason and what it asked for included."""

_log = structlog.get_logger(__name__)


Brokers: TypeAlias = tuple[tuple[int | None, tuple[int, ...]], ...]
"""Of each partition in order: its leader, None when it has none now, and who holds copies."""


@dataclass(frozen=True, slots=True)
class DelayTopic:
    """A delay topic as the cluster has it now.

    ``problems``: why it can't be served, one sentence each; empty when it can.
    """

    name: str
    topic_id: str
    partitions: int
    problems: tuple[str, ...]
    brokers: Brokers = ()


class TargetTopics:
    """What is known of target topics, cached. Shared by the slices of a worker."""

    def __init__(
        self,
        admin: AdminClient,
        monotonic_s: Callable[[], float] = time.monotonic,
        why_paused: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._why_paused = why_paused
        self._admin = admin
        self._monotonic_s = monotonic_s
        self._known: dict[str, Access] = {}
        self._given_up: dict[str, int] = {}
        self._sought: set[str] = set()
        self._asked_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def missing(
        self, targets: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[str, str]]:
        """``(topic, partition or -1)`` of those that can't be written to, with code and detail.

        What is not in the cache as good is asked of the cluster at once, for it may have been
        created a moment ago.

        Raises:
            KafkaEdgeError: the cluster does not answer.
        """
        unsure = [target for target in targets if self._obstacle(target) is not None]
        return self._look_at(unsure, 0.0, ASK_TIMEOUT_S) if unsure else {}

    def unserved(
        self, targets: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[str, str]]:
        """Those of ``targets`` whose records nobody acknowledges, as ``missing``, but asked of the
        cluster in any case, four times a second at most.

        Raises:
            KafkaEdgeError: the cluster does not answer.
        """
        return self._look_at(targets, _RECHECK_S, _UNSERVED_TIMEOUT_S)

    def _look_at(
        self, targets: Collection[tuple[str, int]], age_s_max: float, timeout_s: float
    ) -> dict[tuple[str, int], tuple[str, str]]:
        """What has no leader, or too few copies in sync, is given up until it is served again: were
        it in a transaction, that could not be ended.
        """
        topics = {topic for topic, _ in targets}
        self._ask(topics, age_s_max, timeout_s)
        for topic in topics:
            self._give_up(topic)
        return self._obstacles(targets)

    def _give_up(self, topic: str) -> None:
        access = self._known.get(topic)
        if access is None:  # forgotten a moment ago
            return
        in_sync = min(access.in_sync, default=access.copies)
        if in_sync >= access.copies:
            return
        needed = self._in_sync_needed(topic, in_sync)
        if in_sync < needed:
            with self._lock:
                self._given_up = {**self._given_up, topic: needed}

    def still_missing(
        self, targets: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[str, str]]:
        """Those of ``targets`` that can't be written to as of the last ``look_again``: nobody waits
        for the cluster here.
        """
        with self._lock:
            self._sought |= {topic for topic, _ in targets}
        return self._obstacles(targets)

    def look_again(self) -> None:
        """Ask the cluster for what ``still_missing`` was asked for."""
        with self._lock:
            sought, self._sought = self._sought, set()
        try:
            self._ask(sought, 0.0, ASK_TIMEOUT_S)
        except KafkaEdgeError as exc:
            _log.debug("targets_not_seen", why=str(exc))

    def _obstacles(
        self, targets: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], tuple[str, str]]:
        found = {target: self._obstacle(target) for target in targets}
        return {target: obstacle for target, obstacle in found.items() if obstacle is not None}

    def _obstacle(self, target: tuple[str, int]) -> tuple[str, str] | None:
        topic = target[0]
        paused = self._why_paused(topic)
        if paused is not None:
            return TARGET_PAUSED, paused
        return _obstacle(self._known.get(topic), *target, self._given_up.get(topic, 0))

    def _in_sync_needed(self, topic: str, in_sync: int) -> int:
        """How many copies must be in sync."""
        if in_sync == 0:
            return 1
        value = self._config(topic, "min.insync.replicas")
        return 1 if value is None else int(value)

    def forget(self, topic: str) -> None:
        """The broker says that this topic is not what the cache says."""
        with self._lock:
            self._known = {t: access for t, access in self._known.items() if t != topic}
            self._asked_s.pop(topic, None)

    def record_bytes_max(self, topic: str) -> int | None:
        """The topic's ``max.message.bytes``, or None when the cluster does not say."""
        value = self._config(topic, "max.message.bytes")
        return None if value is None else int(value)

    def _config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            entries = answer_of(
                self._admin.describe_configs([resource])[resource], REQUEST_TIMEOUT_S
            )
        except KafkaException as exc:
            _log.warning("topic_config_not_read", topic=topic, why=str(exc))
            return None
        entry = entries.get(name)
        return None if entry is None else entry.value

    def _ask(self, topics: Collection[str], age_s_max: float, timeout_s: float) -> None:
        """The lock is not held meanwhile: who knows enough must not wait for who does not."""
        now_s = self._monotonic_s()
        never_s = float("-inf")
        old = [t for t in topics if now_s - self._asked_s.get(t, never_s) >= age_s_max]
        if not old:
            return
        found = ask_access(self._admin, old, timeout_s)
        with self._lock:
            self._known = self._known | found
            self._asked_s |= dict.fromkeys(found, self._monotonic_s())
            self._given_up = {
                topic: needed
                for topic, needed in self._given_up.items()
                if topic not in found or min(found[topic].in_sync, default=0) < needed
            }


def _obstacle(
    access: Access | None, topic: str, partition: int, in_sync_needed: int
) -> tuple[str, str] | None:
    """Why nothing can be written to a target, as code and detail; None when it can.

    ``in_sync_needed``: of a topic that was given up; 0 of others: where a leader is elected, the
    client waits.
    """
    if access is None:
        return TARGET_UNKNOWN, f"topic {topic} is not known yet"
    if access.lacks(WRITE):
        return TARGET_UNAUTHORIZED, f"the service may not write to {topic}: give it Write"
    if access.partitions == 0:
        return TARGET_UNKNOWN, f"topic {topic} does not exist"
    if access.partitions <= partition:
        count = access.partitions
        return TARGET_UNKNOWN, f"topic {topic} has {count} partitions, none is {partition}"
    down = [n for n, in_sync in enumerate(access.in_sync) if in_sync < in_sync_needed]
    if down and (partition < 0 or partition in down):
        what = "a leader" if in_sync_needed == 1 else f"{in_sync_needed} copies in sync"
        return TARGET_DOWN, f"partitions {down} of topic {topic} are without {what}"
    return None


class TopicKeeper:
    """Finds delay topics, creates what is missing, and judges what is there."""

    def __init__(self, admin: KafkaAdmin, settings: Settings) -> None:
        self._admin = admin
        self._settings = settings
        self._levels = settings.levels.by_topic

    # --- create --------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create the service's topics and the named delay topics, if settings say so.

        Raises:
            KafkaEdgeError: a topic is missing and can't, or must not, be created.
        """
        topics = self._settings.topics
        existing = self._list()
        there = [len(existing[name]) for name in topics.delay if name in existing]
        slices = max([topics.partitions, *there])
        # A level topic has as many as the precise one beside it, in which its records are parked.
        level_partitions = there[0] if there else topics.partitions
        wanted = {
            topics.checkpoint: (slices, _CHECKPOINT_CONFIG),
            topics.dead_letter: (1, _LETTER_CONFIG),
            topics.outcomes: (1, _LETTER_CONFIG),
            topics.pauses: (1, _PAUSES_CONFIG),
            **self._topics_about_copies,
            **{name: (topics.partitions, self._delay_config(name)) for name in topics.delay},
            **{name: (level_partitions, self._delay_config(name)) for name in self._levels},
        }
        missing = {name: spec for name, spec in wanted.items() if name not in existing}
        if missing and not topics.create:
            raise KafkaEdgeError(
                f"missing topics: {', '.join(sorted(missing))}; create them, or set topics.create. "
                "If they are there, give the service its rights on them"
            )
        self._create(missing)
        self._check_rights()

    @property
    def _topics_about_copies(self) -> dict[str, tuple[int, Mapping[str, str]]]:
        topics = self._settings.topics
        if not self._settings.digests.enabled:
            return {}
        return {
            topics.digests: (1, _DIGEST_CONFIG),
            topics.repairs: (1, _SHORT_CONFIG),
            topics.audit: (1, _SHORT_CONFIG),
        }

    def _check_rights(self) -> None:
        """On what serves every delay topic; a delay topic's own are its own problem."""
        topics = self._settings.topics
        needed = {
            topics.checkpoint: (READ, WRITE),
            topics.dead_letter: (WRITE,),
            topics.outcomes: (WRITE,),
            topics.pauses: (READ,),
        }
        if self._settings.digests.enabled:
            needed |= {topics.digests: (WRITE,), topics.repairs: (READ, WRITE)}
        told = complaints(ask_access(self._admin, needed.keys()), needed)
        if told:
            raise KafkaEdgeError("; ".join(told))
        if self._settings.admin.listen:
            asked = dict.fromkeys(
                (topics.dead_letter, topics.outcomes, topics.pauses), (READ, WRITE)
            )
            for complaint in complaints(ask_access(self._admin, asked.keys()), asked):
                _log.warning("admin_right_missing", why=complaint)

    def _delay_config(self, name: str) -> dict[str, str]:
        retention_ms = max(self._retention_ms_needed(name), _RETENTION_MS)
        return {**_DELAY_CONFIG, "retention.ms": str(retention_ms)}

    def _retention_ms_needed(self, name: str) -> int:
        """As long as a record may wait in the log, and nobody serve it."""
        waits_ms = self._levels.get(name, self._settings.roll_window_ms)
        return waits_ms + self._settings.outage.allowance_ms

    def _create(self, missing: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        if not missing:
            return
        replication = self._settings.topics.replication_factor
        requests = [
            NewTopic(
                name, num_partitions=count, replication_factor=replication, config=dict(config)
            )
            for name, (count, config) in missing.items()
        ]
        for name, future in self._admin.create_topics(requests).items():
            try:
                answer_of(future, REQUEST_TIMEOUT_S)
                _log.info("topic_created", topic=name, partitions=missing[name][0])
            except KafkaException as exc:
                if error_of(exc).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise KafkaEdgeError(f"topic {name} can't be created: {exc}") from exc

    def grow_checkpoint(self, slices: int) -> None:
        """One checkpoint partition per slice, also after partitions were added to a delay topic."""
        name = self._settings.topics.checkpoint
        found = self._list().get(name)
        if found is None or len(found) >= slices:
            return
        for future in self._admin.create_partitions([NewPartitions(name, slices)]).values():
            try:
                answer_of(future, REQUEST_TIMEOUT_S)
                _log.info("checkpoint_grown", topic=name, partitions=slices)
            except KafkaException as exc:
                if error_of(exc).code() == KafkaError.INVALID_PARTITIONS:
                    continue  # another worker or node was faster
                raise KafkaEdgeError(f"{name} can't grow to {slices} partitions: {exc}") from exc

    # --- find and judge ------------------------------------------------------------------------

    def delay_topics(self) -> list[DelayTopic]:
        """Every delay topic there is, judged."""
        topics = self._settings.topics
        existing = self._list()
        own = set(topics.own)
        names = [
            name
            for name in sorted(existing)
            if name in topics.delay
            or name in self._levels
            or (topics.discover and fnmatchcase(name, topics.pattern) and name not in own)
        ]
        if not names:
            return []
        configs = self._configs([*names, topics.dead_letter])
        letters = configs[topics.dead_letter]
        letter_bytes = None if letters is None else int(letters.get("max.message.bytes", "0"))
        access = ask_access(self._admin, names)
        found = []
        for name, topic_id in topic_ids(self._admin, names).items():
            config = configs[name]
            problems = (
                (_UNREADABLE,)
                if config is None
                else tuple(self._problems(name, config, letter_bytes))
            )
            problems += tuple(complaints(access, {name: (READ, WRITE)}))
            found.append(DelayTopic(name, topic_id, len(existing[name]), problems, existing[name]))
        return found

    def _problems(
        self, name: str, config: Mapping[str, str], letter_bytes: int | None
    ) -> Iterable[str]:
        if config.get("message.timestamp.type") != "LogAppendTime":
            yield (
                "message.timestamp.type must be LogAppendTime, for producer timestamps would "
                "decide what retention deletes; alter the topic's configuration"
            )
        if "compact" in config.get("cleanup.policy", ""):
            yield "cleanup.policy must be delete: compaction would remove pending records"
        needed_ms = self._retention_ms_needed(name)
        retention_ms = int(config.get("retention.ms", "-1"))
        if 0 <= retention_ms < needed_ms:
            waits = "level's delay" if name in self._levels else "roll window"
            less = "" if name in self._levels else "delivery.roll_window_ms or "
            yield (
                f"retention.ms is {retention_ms}; the {waits} and the outage allowance need "
                f"{needed_ms}: raise retention.ms, or lower {less}outage.allowance_ms"
            )
        if int(config.get("retention.bytes", "-1")) >= 0:
            yield (
                "retention.bytes is set, so a burst could delete records that are still pending; "
                "remove it and bound the topic by time"
            )
        record_bytes = int(config.get("max.message.bytes", "0"))
        if letter_bytes is None:
            yield (
                f"the configuration of {self._settings.topics.dead_letter} can't be read: give the "
                "service DescribeConfigs on it"
            )
        elif record_bytes + LETTER_EXTRA_BYTES > letter_bytes:
            yield (
                f"max.message.bytes is {record_bytes}, but {self._settings.topics.dead_letter} "
                f"takes {letter_bytes}: a dead letter may be {LETTER_EXTRA_BYTES} bytes larger "
                "than its record; raise the one, or lower the other"
            )

    def _configs(self, names: Iterable[str]) -> dict[str, dict[str, str] | None]:
        """Configuration of each topic; None where the service may not read it.

        Raises:
            KafkaEdgeError: the cluster does not answer.
        """
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        configs: dict[str, dict[str, str] | None] = {}
        for resource, future in self._admin.describe_configs(resources).items():
            try:
                entries = answer_of(future, REQUEST_TIMEOUT_S)
            except KafkaException as exc:
                if error_of(exc).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    configs[resource.name] = None
                    continue
                raise KafkaEdgeError(
                    f"the configuration of {resource.name} can't be read: {exc}"
                ) from exc
            configs[resource.name] = {name: entry.value or "" for name, entry in entries.items()}
        return configs

    def _list(self) -> dict[str, Brokers]:
        try:
            found = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as exc:
            why = self._admin.explain(exc)
            raise KafkaEdgeError(f"the cluster's topics can't be listed: {why}") from exc
        return {n: _brokers(t) for n, t in found.topics.items() if t.error is None}


def _brokers(topic: TopicMetadata) -> Brokers:
    partitions = [topic.partitions[number] for number in sorted(topic.partitions)]
    return tuple(
        (None if p.leader < 0 else p.leader, tuple(sorted(p.replicas))) for p in partitions
    )


_LETTER_CONFIG: Final = {"cleanup.policy": "delete", "max.message.bytes": str(2 * 1024 * 1024)}
"""A dead letter is larger than the record that it carries."""

_UNREADABLE: Final = (
    "its configuration can't be read: give the service DescribeConfigs on the topic"
)

_RETENTION_MS: Final = 7 * 86_400_000
"""Kafka's own default, so that a created topic keeps at least as much as any other."""

_DELAY_CONFIG: Final = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}

_DIGEST_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": "3600000",
    "min.compaction.lag.ms": "3600000",
}
"""Rows are compared at a cut that all copies have, so those just before the newest are kept."""

_SHORT_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": str(30 * 86_400_000)}

_PAUSES_CONFIG: Final = {"cleanup.policy": "compact", "segment.ms": "3600000"}

_CHECKPOINT_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}
