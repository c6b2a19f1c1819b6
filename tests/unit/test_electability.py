"""The verdict on whether a node may own a slice: every fact by itself, and which one is named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from delayservice.engine.electability import (
    DISK_S_MAX,
    ELECTABLE,
    SILENT_S_MAX,
    TURN_S_MAX,
    Cause,
    CopyFacts,
    Verdict,
    WorkerFacts,
    electability,
    rest_s,
)

WELL = WorkerFacts()
UP_TO_DATE = CopyFacts(lag_s=0.0)


def test_a_worker_that_lacks_nothing_may_own_what_it_has_a_copy_of() -> None:
    assert electability(WELL) == ELECTABLE
    assert electability(WELL, UP_TO_DATE) == ELECTABLE
    assert ELECTABLE.may_own


@pytest.mark.parametrize(
    ("worker", "cause", "words"),
    [
        (WorkerFacts(silent_s=SILENT_S_MAX + 1), Cause.WORKER_SILENT, "silent for 16 s"),
        (WorkerFacts(silent_s=math.inf), Cause.WORKER_SILENT, "has not reported yet"),
        (WorkerFacts(kafka="no broker"), Cause.KAFKA_UNREACHABLE, "no broker"),
        (WorkerFacts(zookeeper="wrong password"), Cause.ZOOKEEPER_UNUSABLE, "wrong password"),
        (WorkerFacts(turn_s=TURN_S_MAX + 1), Cause.LOOP_HANGS, "lasted 9 s"),
        (WorkerFacts(disk_s=DISK_S_MAX + 1), Cause.DISK_HANGS, "not answered for 9 s"),
        (WorkerFacts(clock="20 s ahead"), Cause.CLOCK_IN_DOUBT, "20 s ahead"),
        (WorkerFacts(broker="broker 2"), Cause.BROKER_UNREACHABLE, "broker 2"),
        (WorkerFacts(crashes=2, lived_s=1.0), Cause.CRASHED, "2 times"),
    ],
)
def test_an_unfit_worker_owns_nothing_and_says_why(
    worker: WorkerFacts, cause: Cause, words: str
) -> None:
    for found in (electability(worker), electability(worker, UP_TO_DATE)):
        assert not found.may_own
        assert found.cause is cause
        assert words in found.reason


@pytest.mark.parametrize(
    ("copy", "cause", "words"),
    [
        (CopyFacts(), Cause.CATCHING_UP, "not known yet"),
        (CopyFacts(lag_s=11.0), Cause.CATCHING_UP, "11 s behind"),
        (CopyFacts(refusal="another cluster secret"), Cause.REFUSED, "another cluster secret"),
        (CopyFacts(0.0, failure="no coordinator", rest_s=4.0), Cause.FAILING, "no coordinator"),
    ],
)
def test_an_unfit_copy_is_not_owned_and_says_why(copy: CopyFacts, cause: Cause, words: str) -> None:
    found = electability(WELL, copy)
    assert not found.may_own
    assert found.cause is cause
    assert words in found.reason


@pytest.mark.parametrize(
    ("worker", "copy"),
    [
        (WorkerFacts(silent_s=SILENT_S_MAX), UP_TO_DATE),
        (WorkerFacts(turn_s=TURN_S_MAX, disk_s=DISK_S_MAX), UP_TO_DATE),
        (WorkerFacts(crashes=1, lived_s=0.0), UP_TO_DATE),
        (WorkerFacts(crashes=2, lived_s=5.0), UP_TO_DATE),
        (WELL, CopyFacts(lag_s=10.0)),
        (WELL, CopyFacts(0.0, failure="no coordinator", rest_s=0.0)),
    ],
)
def test_facts_within_their_bounds_do_not_disqualify(worker: WorkerFacts, copy: CopyFacts) -> None:
    assert electability(worker, copy) == ELECTABLE


def test_the_reason_named_is_the_one_that_causes_the_others() -> None:
    all_at_once = WorkerFacts(
        99, "kafka", "zookeeper", 99, 99, "writer", "clock", crashes=9, lived_s=0
    )
    expected: list[tuple[str, Cause, Any]] = [
        ("silent_s", Cause.WORKER_SILENT, 0.0),
        ("kafka", Cause.KAFKA_UNREACHABLE, ""),
        ("zookeeper", Cause.ZOOKEEPER_UNUSABLE, ""),
        ("turn_s", Cause.LOOP_HANGS, 0.0),
        ("disk_s", Cause.DISK_HANGS, 0.0),
        ("writer", Cause.WRITER_REFUSED, ""),
        ("clock", Cause.CLOCK_IN_DOUBT, ""),
        ("crashes", Cause.CRASHED, 0),
    ]
    for fact, cause, mended in expected:
        assert electability(all_at_once, CopyFacts()).cause is cause
        all_at_once = all_at_once._replace(**{fact: mended})
    assert electability(all_at_once, CopyFacts()).cause is Cause.CATCHING_UP


def test_only_what_others_are_merely_preferred_to_is_a_last_resort() -> None:
    unknown = WorkerFacts(clock="not compared yet", is_clock_known=False)
    assert electability(unknown).is_last_resort
    assert electability(WorkerFacts(crashes=3, lived_s=0)).is_last_resort
    assert not electability(WorkerFacts(clock="20 s ahead")).is_last_resort
    assert not electability(WorkerFacts(kafka="no broker")).is_last_resort
    assert not electability(WELL, CopyFacts()).is_last_resort


def test_retries_wait_twice_as_long_each_time_and_a_minute_at_most() -> None:
    assert [rest_s(failures) for failures in range(7)] == [0, 5, 10, 20, 40, 60, 60]


def test_a_verdict_without_a_cause_has_no_reason() -> None:
    assert Verdict().reason == ""
    assert all(cause.value.islower() for cause in Cause if cause is not Cause.NONE)
