"""From settings to the contract: how records that are written from now on are read."""

from __future__ import annotations

from delayservice.core.contract import Contract
from delayservice.settings import Settings


def contract_for(settings: Settings, topic: str) -> Contract:
    """What the settings ask for, for records of a delay topic from now on.

    Raises:
        ContractError: settings contradict each other.
    """
    rules = settings.targets_for(topic)
    return Contract(
        roll_window_ms=settings.roll_window_ms,
        roll_spread_ms=settings.roll_spread_ms,
        max_delay_ms=settings.delivery.max_delay_ms,
        clamp=settings.delivery.clamp,
        past_due=settings.delivery.past_due,
        header_bytes_max=int(settings.delivery.header_bytes_max),
        id_bytes_max=int(settings.delivery.id_bytes_max),
        default_target=rules.default_target,
        level_ms=settings.levels.by_topic.get(topic, 0),
        allow=rules.allow,
        reserved=settings.topics.own,
    )
