"""The service's own topics are never targets, whatever they are called and whatever is allowed."""

from __future__ import annotations

import pytest

from delayservice.config.contract import allowlist_for, contract_for
from delayservice.config.settings import Settings
from delayservice.contract.contracts import Contract

OWN = [
    "checkpoint",
    "claims",
    "dead_letter",
    "outcomes",
    "digests",
    "repairs",
    "audit",
    "pauses",
]
NAMED = Settings.model_validate(
    {
        "topics": {name: f"my_{name}" for name in OWN},
        "targets": {"default": {"allow": ["*"]}},
    }
)


@pytest.mark.parametrize("name", OWN)
def test_every_own_topic_is_reserved(name: str) -> None:
    allowlist = allowlist_for(NAMED, "delay_topic_any")
    assert "reserved" in (allowlist.denial(f"my_{name}") or "")
    assert allowlist.denial("my_orders") is None


def test_the_claims_topic_is_reserved_under_its_default_name() -> None:
    settings = Settings.model_validate({"topics": {"checkpoint": "cursors"}})
    assert "reserved" in (allowlist_for(settings, "delay_topic_any").denial("cursors_claims") or "")


def test_the_list_above_is_complete() -> None:
    assert sorted(NAMED.topics.own) == sorted(f"my_{name}" for name in OWN)


RENAMED = Settings.model_validate(
    {
        "topics": {"delay": ["later", "much_later"], "pattern": "wait_*"},
        "levels": {"prefix": "pause_", "delays_ms": [5_000]},
        "targets": {"default": {"allow": ["*"]}},
    }
)


@pytest.mark.parametrize("topic", ["later", "much_later", "wait_anything", "pause_1"])
def test_no_delay_topic_is_a_target_whatever_its_name(topic: str) -> None:
    allowlist = allowlist_for(RENAMED, "later")
    assert "reserved" in (allowlist.denial(topic) or "")
    assert allowlist.denial("waiting") is None


def test_a_changed_allowlist_begins_no_contract() -> None:
    changed = {
        "topics": {"delay": ["later"], "pattern": "wait_*"},
        "targets": {"default": {"allow": ["orders"]}},
    }
    contracts = {
        contract_for(Settings.model_validate(given), "delay_topic_any") for given in ({}, changed)
    }
    assert contracts == {Contract(roll_spread_ms=Settings().roll_spread_ms)}


def test_a_default_target_is_allowed_without_a_pattern() -> None:
    given = {"targets": {"default": {"default_target": "orders"}}}
    allowlist = allowlist_for(Settings.model_validate(given), "delay_topic_any")
    assert allowlist.denial("orders") is None
    assert "not among the targets" in (allowlist.denial("others") or "")
