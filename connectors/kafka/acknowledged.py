"""Checks of settings by which Kafka may lose what it has acknowledged, or leave a transaction open.

The service's promises rest on logs that keep what brokers acknowledged. A node looks at these
settings once, when it starts, and goes on: nobody but the operator can change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from fnmatch import fnmatchcase
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    ConfigResource,
    ResourceType,
)

from connectors.kafka.errors import answer_of
from connectors.kafka.topic_facts import brokers_of, copies_of
from delayservice.config.settings import Settings

# Topic of the transaction coordinators; it does not exist before the first transaction.
TRANSACTION_STATE: Final = "__transaction_state"
_VERIFICATION: Final = "transaction.partition.verification.enable"
_NAMED_MAX: Final = 6
_TIMEOUT_S: Final = 15.0

_log = structlog.get_logger(__name__)


def warn_of_losses(admin: AdminClient, settings: Settings) -> int:
    """Log a warning with all settings by which the cluster may lose what it acknowledged, or leave
    a transaction open; return their number. What can't be read is left out: nothing depends on it.
    """
    try:
        found = admin.list_topics(timeout=_TIMEOUT_S)
    except KafkaException as exc:
        _log.info("settings_not_readable", resource="the cluster", why=str(exc))
        return 0
    copies = {
        name: copies_of(brokers_of(topic))
        for name, topic in sorted(found.topics.items())
        if topic.error is None and _is_asked_for(name, settings)
    }
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in copies]
    topics = _configs(admin.describe_configs(asked)) if asked else {}
    # A broker answers only for itself, so each is asked alone.
    resources = [ConfigResource(ResourceType.BROKER, str(n)) for n in sorted(found.brokers)]
    brokers = _configs({one: admin.describe_configs([one])[one] for one in resources})
    problems = [*topic_problems(copies, topics), *broker_problems(brokers)]
    if problems:
        _log.warning("acknowledged_may_be_lost", problems=problems)
    return len(problems)


def topic_problems(
    copies: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]
) -> Iterable[str]:
    # ``configs`` lacks topics whose configuration can't be read.
    alone = [name for name in copies if copies[name] == 1]
    if alone:
        yield f"replication factor 1: what a lost broker held is lost ({_named(alone)})"
    several = {name: config for name, config in configs.items() if copies[name] > 1}
    few = [n for n, config in several.items() if config.get("min.insync.replicas") == "1"]
    if few:
        yield (
            "min.insync.replicas is 1: a record is acknowledged that only one broker holds; set 2 "
            f"on {_named(few)}"
        )
    unclean = "unclean.leader.election.enable"
    lossy = [n for n, config in several.items() if config.get(unclean) == "true"]
    if lossy:
        yield (
            f"{unclean} is true: a broker that lacks acknowledged records may become leader; set "
            f"false on {_named(lossy)}"
        )


def broker_problems(configs: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    off = [name for name, config in configs.items() if config.get(_VERIFICATION) == "false"]
    if off:
        yield (
            f"{_VERIFICATION} is false on brokers {', '.join(off)}: a late record may leave a "
            "transaction open that nothing ends, and nothing behind it is read; set true"
        )


def _is_asked_for(name: str, settings: Settings) -> bool:
    topics = settings.topics
    is_delay = name in topics.delay or name in settings.levels.by_topic
    is_found = topics.discover and fnmatchcase(name, topics.pattern)
    return name == TRANSACTION_STATE or name in topics.own or is_delay or is_found


def _configs(asked: Mapping[ConfigResource, Future[Any]]) -> dict[str, dict[str, str]]:
    configs = {}
    for resource, future in asked.items():
        try:
            entries = answer_of(future, _TIMEOUT_S)
        except KafkaException as exc:
            _log.info("settings_not_readable", resource=resource.name, why=str(exc))
            continue
        configs[resource.name] = {name: entry.value or "" for name, entry in entries.items()}
    return configs


def _named(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
