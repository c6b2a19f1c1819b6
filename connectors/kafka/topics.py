"""Finds and creates topics, and checks whether they can be served.

A delay topic with a *problem* is not served. A delay topic with a *risk*, by which records may be
lost, goes on being served if it is served already: stopping would not prevent the loss, and stored
records would be late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AclOperation,
    NewTopic,
)

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.errors import answer_of, error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S
from connectors.kafka.topic_configs import (
    CHECKPOINT_CONFIG,
    CURSOR_RULES,
    DELAY_CONFIG,
    DELAY_RULES,
    DIGEST_CONFIG,
    LETTER_CONFIG,
    LETTER_EXTRA_BYTES,
    OUTLET_RULES,
    PAUSES_CONFIG,
    RETENTION_MS,
    SHORT_CONFIG,
    SIZED,
    broken,
    is_delay_topic,
)
from connectors.kafka.topic_facts import (
    READ,
    WRITE,
    Access,
    Brokers,
    PartitionCounts,
    ServedTopic,
    TopicProblem,
    TopicsSnapshot,
    ask_access,
    ask_configs,
    brokers_of,
    complaints,
    copies_of,
    list_topics,
)
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.settings import Settings

_log = structlog.get_logger(__name__)


# Configurations by topic; None: the service may not read it. Without topics that the broker which
# was asked does not know: one that was just created is known to all brokers only a little later.
_Configs: TypeAlias = Mapping[str, Mapping[str, str] | None]


class _Spec(NamedTuple):
    """A topic that a node needs: partitions and configuration with which it is created, and the
    rights without which no node starts.
    """

    partitions: int
    config: Mapping[str, str]
    needed: tuple[AclOperation, ...] = ()


class TopicKeeper:
    """A client that finds delay topics, creates missing topics, and judges existing ones."""

    def __init__(
        self,
        admin: KafkaAdmin,
        settings: Settings,
        # Returns the longest time in ms for which each delay topic's log must keep records under
        # the contracts in force (``longest_waits_ms``); topics without one are left out.
        waits_ms: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._admin = admin
        self._waits_ms = waits_ms
        self._settings = settings
        self._levels = settings.levels.by_topic

    def prepare(self) -> None:
        topics = self._settings.topics
        missing = self.missing()
        if missing and not topics.create:
            raise KafkaEdgeError(
                f"missing topics: {', '.join(sorted(missing))}; create them, or set topics.create. "
                "If they are there, give the service its rights on them"
            )
        self.create(missing)
        self._check_rights(self._specs({}))
        configs = self._configs((topics.checkpoint, topics.claims_topic))
        problems = self._own_problems(self._list(), configs, None)
        unsafe = [problem.text for problem in problems if problem.is_fatal]
        if unsafe:
            raise KafkaEdgeError("; ".join(unsafe))

    def missing(self) -> dict[str, _Spec]:
        existing = self._list()
        specs = self._specs(existing)
        return {name: spec for name, spec in specs.items() if name not in existing}

    def _specs(self, existing: Mapping[str, Brokers]) -> dict[str, _Spec]:
        topics = self._settings.topics
        there = [len(existing[name]) for name in topics.delay if name in existing]
        # A level topic has as many as the precise one beside it, in which its records are parked.
        level_partitions = there[0] if there else topics.partitions
        # With three copies, two must confirm each claim, so that no claim is lost with one broker
        # and then overlooked.
        has_three = topics.replication_factor >= _COPIES_FOR_TWO
        in_sync = {"min.insync.replicas": "2"} if has_three else {}
        return {
            topics.checkpoint: _Spec(
                topics.checkpoint_partitions, CHECKPOINT_CONFIG, (READ, WRITE)
            ),
            topics.claims_topic: _Spec(1, CHECKPOINT_CONFIG | in_sync, (READ, WRITE)),
            topics.dead_letter: _Spec(1, LETTER_CONFIG, (WRITE,)),
            topics.outcomes: _Spec(1, LETTER_CONFIG, (WRITE,)),
            topics.pauses: _Spec(1, PAUSES_CONFIG, (READ,)),
            **self._about_copies,
            **{name: _Spec(topics.partitions, self._delay_config(name)) for name in topics.delay},
            **{name: _Spec(level_partitions, self._delay_config(name)) for name in self._levels},
        }

    @property
    def _about_copies(self) -> dict[str, _Spec]:
        topics = self._settings.topics
        if not self._settings.digests.enabled:
            return {}
        return {
            topics.digests: _Spec(1, DIGEST_CONFIG, (WRITE,)),
            topics.repairs: _Spec(1, SHORT_CONFIG, (READ, WRITE)),
            topics.audit: _Spec(1, SHORT_CONFIG),
        }

    def _check_rights(self, specs: Mapping[str, _Spec]) -> None:
        needed = {name: spec.needed for name, spec in specs.items() if spec.needed}
        access = ask_access(self._admin, needed.keys())
        if lacking := complaints(access, needed):
            raise KafkaEdgeError("; ".join(one.text for one in lacking))
        topics = self._settings.topics
        if self._settings.admin.listen:
            wanted = (topics.dead_letter, topics.outcomes, topics.pauses)
            for complaint in complaints(access, dict.fromkeys(wanted, (READ, WRITE))):
                _log.warning("admin_right_missing", why=complaint.text)

    def _make_again(self, name: str) -> str:
        waits = f"{name} does not exist: what would be written there waits, with its shard"
        if not self._settings.topics.create:
            return f"{waits}; create it, or set topics.create"
        try:
            made = self.create({name: _Spec(1, LETTER_CONFIG)})
        except KafkaEdgeError as exc:
            return f"{waits}; {exc}"
        # The broker that was asked may not know yet what another node just created.
        return f"{name} {MADE_AGAIN}" if made else ""

    def _own_problems(
        self, existing: Mapping[str, Brokers], configs: _Configs, layout: PartitionCounts | None
    ) -> list[TopicProblem]:
        """Return the problems of the checkpoint and claims topics. ``layout``: partitions at the
        worker's start; None: not known yet.
        """
        topics = self._settings.topics
        wanted = max((copies_of(existing[name]) for name in self._names(existing)), default=1)
        found: list[TopicProblem] = []
        for name in (topics.checkpoint, topics.claims_topic):
            brokers = existing.get(name, ())
            if not brokers or name not in configs:
                found.append(TopicProblem(name, f"{name} does not exist"))
                continue
            config = configs[name]
            if config is None:
                why = f"give the service DescribeConfigs on {name}"
                found.append(TopicProblem(name, why, is_fatal=True))
                continue
            found += [
                TopicProblem(name, f"{name}: {why}", is_fatal=True)
                for why in broken(CURSOR_RULES, config)
            ]
            if copies_of(brokers) < wanted:
                few = f"{name} has {copies_of(brokers)} replicas, and a delay topic {wanted}"
                why = "a cursor that is lost with its broker has everything delivered again"
                found.append(TopicProblem(name, f"{few}: {why}; raise its replication factor"))
        partitions = len(existing.get(topics.checkpoint, ()))
        before = partitions if layout is None else layout.checkpoint_partitions
        if partitions not in (0, before):
            why = _GROWN if partitions > before else _SHRUNK
            changed = f"{topics.checkpoint} had {before} partitions and has {partitions}"
            found.append(TopicProblem(topics.checkpoint, f"{changed}: {why}"))
        if len(existing.get(topics.claims_topic, ())) > 1:
            why = f"{topics.claims_topic} must have one partition, for one order"
            found.append(TopicProblem(topics.claims_topic, why, is_fatal=True))
        return found

    def layout(self) -> PartitionCounts:
        existing, name = self._list(), self._settings.topics.checkpoint
        if not existing.get(name):
            raise KafkaEdgeError(f"topic {name} is not there: create it, or set topics.create")
        places = sum(len(existing[one]) for one in self._names(existing))
        return PartitionCounts(len(existing[name]), places)

    def _names(self, existing: Collection[str]) -> list[str]:
        return [name for name in sorted(existing) if is_delay_topic(name, self._settings)]

    def _delay_config(self, name: str) -> dict[str, str]:
        retention_ms = max(self._retention_ms_needed(name), RETENTION_MS)
        return {**DELAY_CONFIG, "retention.ms": str(retention_ms)}

    def _retention_ms_needed(self, name: str) -> int:
        waits_ms = self._levels.get(name, self._settings.roll_window_ms)
        return waits_ms + self._settings.outage.allowance_ms

    def create(self, missing: Mapping[str, _Spec]) -> list[str]:
        # Returns those that did not exist.
        made: list[str] = []
        if not missing:
            return made
        replication = self._settings.topics.replication_factor
        requests = [
            NewTopic(name, spec.partitions, replication, config=dict(spec.config))
            for name, spec in missing.items()
        ]
        for name, future in self._admin.create_topics(requests).items():
            try:
                answer_of(future, ASK_TIMEOUT_S)
                made.append(name)
                _log.info("topic_created", topic=name, partitions=missing[name].partitions)
            except KafkaException as exc:
                if error_of(exc).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise KafkaEdgeError(f"topic {name} can't be created: {exc}") from exc
        return made

    def look(self, layout: PartitionCounts) -> TopicsSnapshot:
        # A missing topic for dead letters or outcomes is created again, if the settings allow it.
        topics, existing = self._settings.topics, self._list()
        names = self._names(existing)
        outlets = (topics.dead_letter, topics.outcomes)
        others = (topics.pauses, *self._about_copies)
        own_names = (topics.checkpoint, topics.claims_topic, *outlets, *others)
        access = ask_access(self._admin, (*own_names, *names))
        configs = self._configs((topics.checkpoint, topics.claims_topic, *outlets, *names))
        problems = complaints(access, dict.fromkeys(outlets, (WRITE,)))
        for name in outlets:
            is_missing = name not in existing and not access[name].lacks(WRITE)
            if is_missing and (problem := self._make_again(name)):
                problems.append(TopicProblem(name, problem))
            # Without a configuration, a refusal shows what is refused there.
            if (config := configs.get(name)) is not None:
                problems += [
                    TopicProblem(name, f"{name}: {why}") for why in broken(OUTLET_RULES, config)
                ]
        own = self._own_problems(existing, configs, layout)
        own += [
            TopicProblem(name, f"{name} does not exist; create it")
            for name in others
            if name not in existing
        ]
        ids = {name: access[name].topic_id for name in own_names if access[name].topic_id}
        found = self._delay_topics(existing, access, configs)
        return TopicsSnapshot(found, tuple(own), tuple(problems), ids)

    def _delay_topics(
        self, existing: Mapping[str, Brokers], access: Mapping[str, Access], configs: _Configs
    ) -> list[ServedTopic]:
        topics = self._settings.topics
        missing = [n for n in (*topics.delay, *self._levels) if n not in existing]
        letters = configs.get(topics.dead_letter)
        letter_bytes = None if letters is None else int(letters.get("max.message.bytes", "0"))
        waits_ms = self._waits_ms()
        found = []
        for name in self._names(existing):
            topic_id, brokers = access[name].topic_id, existing[name]
            if not topic_id:  # deleted a moment ago, or hidden from this client
                _log.warning("topic_not_described", topic=name)
                continue
            config = configs.get(name)
            lacking, risks = complaints(access, {name: (READ, WRITE)}), [_UNREADABLE]
            problems = [one.text for one in lacking]
            if config is not None:
                problems = broken(DELAY_RULES, config) + problems
                risks = [*self._risks(name, config, letter_bytes, waits_ms.get(name, 0))]
            risks += self._home_risks(name, len(brokers))
            found.append(
                ServedTopic(name, topic_id, len(brokers), tuple(problems), brokers, tuple(risks))
            )
        return found + [ServedTopic(name, "", 0, (_GONE,)) for name in missing]

    def _risks(
        self, name: str, config: Mapping[str, str], letter_bytes: int | None, waits_ms: int
    ) -> Iterable[str]:
        allowance_ms = self._settings.outage.allowance_ms
        needed_ms = max(self._retention_ms_needed(name), waits_ms + allowance_ms)
        retention_ms = int(config.get("retention.ms", "-1"))
        if 0 <= retention_ms < needed_ms:
            waits = "level's delay" if name in self._levels else "roll window"
            less = "" if name in self._levels else "delivery.roll_window_ms or "
            yield (
                f"retention.ms is {retention_ms}; the {waits}, as set or as its records are read, "
                f"and the outage allowance need {needed_ms}: raise retention.ms, or lower "
                f"{less}outage.allowance_ms"
            )
        yield from broken([SIZED], config)
        record_bytes = int(config.get("max.message.bytes", "0"))
        if letter_bytes is None:
            yield (
                f"the configuration of {self._settings.topics.dead_letter} can't be read: give the "
                "service DescribeConfigs on it, or create it if it is gone"
            )
        elif record_bytes + LETTER_EXTRA_BYTES > letter_bytes:
            yield (
                f"max.message.bytes is {record_bytes}, but {self._settings.topics.dead_letter} "
                f"takes {letter_bytes}: a dead letter may be {LETTER_EXTRA_BYTES} bytes larger "
                "than its record; raise the one, or lower the other"
            )

    def _home_risks(self, name: str, partitions: int) -> Iterable[str]:
        homes = self._settings.delivery.id_partitions or 0
        if homes > partitions and name not in self._levels:
            yield (
                f"it has {partitions} partitions, and ids are at home in {homes} "
                "(delivery.id_partitions): records of the missing ones wait; add partitions"
            )

    def _configs(self, names: Collection[str]) -> _Configs:
        configs: dict[str, dict[str, str] | None] = {}
        for name, found in ask_configs(self._admin, names):
            if not isinstance(found, KafkaException):
                configs[name] = found
            elif error_of(found).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                configs[name] = None
            elif error_of(found).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaEdgeError(
                    f"the configuration of {name} can't be read: {found}"
                ) from found
        return configs

    def _list(self) -> dict[str, Brokers]:
        topics = list_topics(self._admin).topics
        return {n: brokers_of(t) for n, t in topics.items() if t.error is None}


_COPIES_FOR_TWO: Final = 3

_UNREADABLE: Final = (
    "its configuration can't be read: give the service DescribeConfigs on the topic"
)

_SHRUNK: Final = "the cursors of slices without a partition can't be written; add partitions"

_GROWN: Final = (
    "a node that starts now looks for checkpoints in other partitions, and takes over no slice "
    "whose checkpoint lies elsewhere; move these, as docs/internals/procedures.md says"
)

MADE_AGAIN: Final = (
    "had been deleted, and was made again: what it held is lost; see that nothing deletes it"
)

_GONE: Final = (
    "it does not exist, and topics.delay or levels name it: create it, or take it out of them"
)
