"""The contract and the allowlist of a delay topic, made from the settings."""

from __future__ import annotations

from delayservice.config.settings import Settings
from delayservice.contract.contracts import CONTRACT_VERSION, Contract
from delayservice.contract.names import is_reserved
from delayservice.contract.targets import Allowlist


def contract_for(settings: Settings, topic: str, version_max: int = CONTRACT_VERSION) -> Contract:
    """Return the contract (rules by which records are read) for records written from now on.

    Args:
        settings: settings of this node.
        topic: delay topic of the records.
        version_max: newest contract version that all nodes know; rules that this version can't
            express are left out.

    Raises:
        ContractError: settings contradict each other.
    """
    level_ms = settings.levels.by_topic.get(topic, 0)
    return Contract(
        version=version_max,
        roll_window_ms=settings.roll_window_ms,
        roll_spread_ms=settings.roll_spread_ms,
        max_delay_ms=settings.delivery.max_delay_ms,
        clamp=settings.delivery.clamp,
        past_due=settings.delivery.past_due,
        header_bytes_max=int(settings.delivery.header_bytes_max),
        id_bytes_max=int(settings.delivery.id_bytes_max),
        default_target=settings.targets_for(topic).default_target,
        level_ms=level_ms,
        id_partitions=0 if level_ms else settings.delivery.id_partitions or 0,
    )


def allowlist_for(settings: Settings, topic: str) -> Allowlist:
    """Return the allowlist of target topics for records of a delay topic, from the settings."""
    rules = settings.targets_for(topic)
    return Allowlist(topic, rules.allow, reserved_topics(settings), rules.default_target)


def allowed_patterns(settings: Settings) -> tuple[str, ...] | None:
    """Return the names and patterns of target topics that are allowed to at least one delay topic;
    None: the settings have no ``[targets]``, as is usual for a client.
    """
    rules = settings.targets.values()
    found = {name for rule in rules for name in (*rule.allow, rule.default_target) if name}
    return tuple(sorted(found)) if settings.targets else None


def reserved_topics(settings: Settings) -> tuple[str, ...]:
    """Return names and patterns of topics that are never targets: the service's own topics and all
    delay topics. A record there could pause deliveries, order repairs, or be delayed again.
    """
    topics = settings.topics
    delay = [*topics.delay, *settings.levels.by_topic]
    if topics.discover:
        delay.append(topics.pattern)
    # Names with a reserved prefix need no entry.
    return (*topics.own, *sorted({name for name in delay if not is_reserved(name)}))
