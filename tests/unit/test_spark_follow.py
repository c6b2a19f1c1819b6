"""Audits and comparisons that go on: what they refuse, and the exit status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.spark.audit import AuditOptions, Following, OffsetRange
from delayservice.base.errors import InvalidRequestError
from delayservice.commands.spark_reconcile import status_of

CLEAN, WRONG, PART = (SimpleNamespace(status=status) for status in (0, 3, 4))


def test_an_audit_that_follows_is_not_limited_to_ranges() -> None:
    options = AuditOptions({}, "out", ranges=(OffsetRange("delay_topic_any", 0, 5, 9),))
    with pytest.raises(InvalidRequestError, match="name no ranges"):
        Following(cast("Any", None), options)


@pytest.mark.parametrize(
    ("failed", "last", "status"),
    [
        (0, CLEAN, 0),
        (0, None, 4),
        (0, PART, 4),
        (1, CLEAN, 1),
        (1, None, 1),
        (1, PART, 1),
        (0, WRONG, 3),
        (1, WRONG, 3),
    ],
)
def test_what_was_found_last_counts_most_and_a_failure_shows(
    failed: int, last: object, status: int
) -> None:
    assert status_of(failed, cast("Any", last)) == status
