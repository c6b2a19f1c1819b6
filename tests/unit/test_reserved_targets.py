"""The service's own topics are never targets, whatever they are called and whatever is allowed."""

from __future__ import annotations

import pytest

from delayservice.contracts import contract_for
from delayservice.core.codes import TARGET_DENIED, RecordRefusedError
from delayservice.core.contract import ContractError
from delayservice.core.targets import Targets
from delayservice.settings import Settings

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
    targets = Targets(contract_for(NAMED, "delay_topic_any"), "delay_topic_any")
    with pytest.raises(RecordRefusedError) as refused:
        targets.check("delay-target-topic", f"my_{name}".encode())
    assert refused.value.code == TARGET_DENIED
    assert targets.check("delay-target-topic", b"my_orders") == "my_orders"


def test_the_claims_topic_is_reserved_under_its_default_name() -> None:
    settings = Settings.model_validate({"topics": {"checkpoint": "cursors"}})
    assert "cursors_claims" in contract_for(settings, "delay_topic_any").reserved


def test_the_list_above_is_complete() -> None:
    assert sorted(NAMED.topics.own) == sorted(f"my_{name}" for name in OWN)
    assert contract_for(NAMED, "delay_topic_any").reserved == NAMED.topics.own


RENAMED = Settings.model_validate(
    {
        "topics": {"delay": ["later", "much_later"], "pattern": "wait_*"},
        "levels": {"prefix": "pause_", "delays_ms": [5_000]},
        "targets": {"default": {"allow": ["*"]}},
    }
)


@pytest.mark.parametrize("topic", ["later", "much_later", "wait_anything", "pause_1"])
def test_no_delay_topic_is_a_target_whatever_its_name(topic: str) -> None:
    targets = Targets(contract_for(RENAMED, "later"), "later")
    with pytest.raises(RecordRefusedError) as refused:
        targets.check("delay-target-topic", topic.encode())
    assert refused.value.code == TARGET_DENIED
    assert targets.check("delay-target-topic", b"waiting") == "waiting"


def test_a_node_that_reads_no_patterns_refuses_a_contract_that_has_some() -> None:
    assert contract_for(RENAMED, "later", 3).version == 3
    names = Settings.model_validate({"topics": {"delay": ["later"]}})
    assert contract_for(names, "later", 3).version == 2
    assert "later" in contract_for(names, "later", 3).reserved


def test_a_pattern_is_left_out_where_a_node_knows_names_only() -> None:
    contract = contract_for(RENAMED, "later", 2)
    assert contract.version == 2
    assert "later" in contract.reserved
    assert "wait_*" not in contract.reserved


def test_a_default_target_that_is_a_delay_topic_is_refused() -> None:
    given = RENAMED.model_dump() | {"targets": {"default": {"default_target": "wait_a_moment"}}}
    with pytest.raises(ContractError, match="reserved"):
        contract_for(Settings.model_validate(given), "later")


def test_contracts_without_patterns_are_what_they_were() -> None:
    """Else every node would write a new contract at its next take-over."""
    contract = contract_for(Settings(), "delay_topic_any", 3)
    assert contract.version == 2
    assert contract.reserved == Settings().topics.own
