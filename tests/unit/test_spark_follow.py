"""The exit status of comparisons that go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.spark.reconcile.follow import Followed
from delayservice.commands.spark_follow import status_of

CLEAN, WRONG = SimpleNamespace(is_clean=True), SimpleNamespace(is_clean=False)


@pytest.mark.parametrize(
    ("failed", "last", "status"),
    [(0, CLEAN, 0), (0, None, 0), (1, CLEAN, 1), (1, None, 1), (0, WRONG, 3), (1, WRONG, 3)],
)
def test_what_was_found_last_counts_most_and_a_failure_shows(
    failed: int, last: object, status: int
) -> None:
    done = Followed(3, failed, last=cast("Any", last))
    assert status_of(done) == status
