"""The service's own topics are never targets, whatever they are called and whatever is allowed."""

from __future__ import annotations

import pytest

from delayservice.contracts import contract_for
from delayservice.core.codes import TARGET_DENIED, RecordRefusedError
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
