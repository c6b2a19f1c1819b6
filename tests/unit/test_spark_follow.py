"""Audits and comparisons that go on: what they refuse, and the exit status."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PythonException

from connectors.spark.audit import AuditOptions, Following, OffsetRange
from delayservice.base.errors import InvalidRequestError, KafkaEdgeError
from delayservice.commands.spark_reconcile import status_of
from delayservice.commands.spark_session import Running, repeat, told_to_stop

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
        (1, None, 1),
        (1, PART, 1),
        (1, WRONG, 3),
    ],
)
def test_the_exit_status_shows_the_last_findings_or_a_failure(
    failed: int, last: object, status: int
) -> None:
    assert status_of(failed, cast("Any", last)) == status


@pytest.mark.parametrize(
    ("last", "has_failed"), [(None, False), (KafkaEdgeError("no broker"), True)]
)
def test_a_following_job_goes_on_after_a_failure_of_kafka_or_spark(
    capsys: pytest.CaptureFixture[str], last: Exception | None, *, has_failed: bool
) -> None:
    calls = [KafkaEdgeError("no broker"), PythonException("a worker died"), None, last]

    def step() -> None:
        failure = calls.pop(0)
        if not calls:
            os.kill(os.getpid(), signal.SIGTERM)
        if failure is not None:
            raise failure

    job = Running(cast("Any", None), lambda _: None)
    with told_to_stop() as stop:
        assert repeat(job, 10, step, stop) is has_failed
    told = capsys.readouterr().err
    assert "no broker; it is tried again in 0 s" in told
    assert "a worker died; it is tried again in 0 s" in told
