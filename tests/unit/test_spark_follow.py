"""Audits and comparisons that go on: what they refuse, and the exit status."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import pytest
from pyspark.errors import PythonException

from connectors.spark.audit import AuditOptions, Following, OffsetRange
from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.commands.spark_session import Running, followed_status, repeat, told_to_stop


def test_an_audit_that_follows_is_not_limited_to_ranges() -> None:
    options = AuditOptions({}, "out", ranges=(OffsetRange("delay_topic_any", 0, 5, 9),))
    with pytest.raises(InvalidRequestError, match="name no ranges"):
        Following(cast("Any", None), options)


@pytest.mark.parametrize(
    ("found", "failed", "status"),
    [(0, False, 0), (4, False, 4), (0, True, 1), (4, True, 1), (3, True, 3)],
)
def test_the_exit_status_shows_the_last_findings_or_a_failure(
    found: int, status: int, *, failed: bool
) -> None:
    assert followed_status(found, failed=failed) == status


@pytest.mark.parametrize(
    ("last", "has_failed"), [(None, False), (KafkaEdgeError("no broker"), True)]
)
def test_a_following_job_goes_on_after_a_failure_of_kafka_or_spark(
    capsys: pytest.CaptureFixture[str], last: Exception | None, *, has_failed: bool
) -> None:
    calls = [KafkaEdgeError("no broker"), PythonException("a worker died"), None, last]

    def step() -> None:
        failure = calls.pop(0)
        if failure is not None:
            raise failure

    def say(_: str) -> None:
        if not calls:
            os.kill(os.getpid(), signal.SIGTERM)

    with told_to_stop() as stop:
        assert repeat(Running(cast("Any", None), say), 10, step, stop) is has_failed
    told = capsys.readouterr().err
    assert "no broker; it is tried again in 0 s" in told
    assert "a worker died; it is tried again in 0 s" in told
