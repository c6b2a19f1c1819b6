"""What a node makes of looks at topics and at its disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from connectors.kafka.topic_facts import ServedTopic, TopicProblem, TopicsSnapshot
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.stores import Disk
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.cursor import Cursor
from delayservice.engine.disk import DiskLevel, Watermarks
from delayservice.engine.ports import Bounds, PolledBatch
from delayservice.process.watches import DiskWatch, MadeAgain, TopicWatcher, used_percent
from delayservice.slices.edges import Limits
from delayservice.slices.lane import Lane
from delayservice.store.memory import MemoryStore
from tests.unit.lanes import TOPIC, QuietSource, lane_of, routes_of
from tests.unit.loop_stage import Stage

GOOD = ServedTopic("delay_topic_any", "id-1", 2, ())
RISKY = replace(GOOD, risks=("retention.ms is 1",))


@dataclass
class Cluster:
    now_s: float = 100.0
    answer: Sequence[ServedTopic] | Exception = (GOOD,)
    checkpointed: set[str] = field(default_factory=set)
    own: tuple[TopicProblem, ...] = ()
    outlets: tuple[TopicProblem, ...] = ()
    ids: dict[str, str] = field(default_factory=dict)

    def look(self) -> TopicsSnapshot:
        if isinstance(self.answer, Exception):
            raise self.answer
        return TopicsSnapshot(self.answer, self.own, self.outlets, self.ids)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def watcher(cluster: Cluster) -> TopicWatcher:
    return TopicWatcher(
        cluster.look,
        lambda topic: topic.topic_id in cluster.checkpointed,
        lambda: cluster.now_s,
        every_s=5.0,
    )


ERRORS = [KafkaEdgeError("no broker answers"), ValueError("a configuration that is no number")]


@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_look_is_a_problem(
    cluster: Cluster, watcher: TopicWatcher, error: Exception
) -> None:
    cluster.answer = error
    assert watcher.refresh() is None
    assert [str(error) in text for text in watcher.problems()] == [True]


@pytest.mark.parametrize("error", ERRORS)
def test_topics_stay_when_looks_fail(
    cluster: Cluster, watcher: TopicWatcher, error: Exception
) -> None:
    assert watcher.refresh() == []
    cluster.answer = error
    cluster.now_s += 10
    assert watcher.refresh() is None
    assert watcher.served == [GOOD]
    assert watcher.problems() == [], "one look was missed"
    assert watcher.age_s == 10
    cluster.now_s += 10
    assert [str(error) in text for text in watcher.problems()] == [True]
    cluster.answer = (GOOD,)
    assert watcher.refresh() == []
    assert watcher.problems() == []
    assert watcher.age_s == 0


def test_a_topic_that_is_gone_is_a_problem(cluster: Cluster, watcher: TopicWatcher) -> None:
    watcher.refresh()
    cluster.answer = (ServedTopic(GOOD.name, "", 0, ("it does not exist",)),)
    watcher.refresh()
    assert watcher.served == []
    assert watcher.problems() == ["delay_topic_any is not served: it does not exist"]


def test_a_topic_that_is_served_goes_on_at_a_risk(cluster: Cluster, watcher: TopicWatcher) -> None:
    watcher.refresh()
    cluster.answer = (RISKY,)
    watcher.refresh()
    assert watcher.served == [RISKY]
    assert watcher.problems() == ["delay_topic_any may lose records: retention.ms is 1"]


def test_a_risky_topic_is_begun_only_if_pending(cluster: Cluster, watcher: TopicWatcher) -> None:
    cluster.answer = (RISKY,)
    watcher.refresh()
    assert watcher.served == []
    assert watcher.problems() == ["delay_topic_any is not served: retention.ms is 1"]
    cluster.checkpointed.add(RISKY.topic_id)
    watcher.refresh()
    assert watcher.served == [RISKY]


def test_another_topic_of_this_name_is_a_new_one(cluster: Cluster, watcher: TopicWatcher) -> None:
    watcher.refresh()
    cluster.answer = (replace(RISKY, topic_id="id-2"),)
    watcher.refresh()
    assert watcher.served == []


@pytest.mark.parametrize(
    "problem", ["delay_checkpoint: cleanup.policy is delete", "delay_outcomes does not exist"]
)
def test_a_bad_own_topic_is_a_problem(
    cluster: Cluster, watcher: TopicWatcher, problem: str
) -> None:
    told = (TopicProblem("", problem),)
    if "outcomes" in problem:
        cluster.outlets = told
    else:
        cluster.own = told
    with structlog.testing.capture_logs() as logs:
        watcher.refresh()
        watcher.refresh()
    assert [one["problems"] for one in logs] == [(problem,)], "once"
    assert watcher.problems() == [problem]
    assert watcher.seen.own_problems == cluster.own, "letters are no doubt about cursors"
    assert watcher.served == [GOOD]
    cluster.own = cluster.outlets = ()
    watcher.refresh()
    assert watcher.problems() == []


def test_a_topic_made_again_is_reported_once(cluster: Cluster, watcher: TopicWatcher) -> None:
    said = []
    for ids in ({"a": "1", "b": "1"}, {"a": "2"}, {"a": "2", "b": "2"}, {"a": "2", "b": "2"}):
        cluster.ids = ids
        said.append(watcher.refresh())
    assert said == [[], [MadeAgain("a", was_missing=False)], [MadeAgain("b", was_missing=True)], []]


# --- what is still done while the disk fills up ---------------------------------------------------


MARKS = Watermarks(warn=75, stop=85, full=90, resume_below=2)
ROOM, WARN, STOP, FULL = DiskLevel


def levels(*used: float) -> list[DiskLevel]:
    level, seen = ROOM, []
    for percent in used:
        level = MARKS.level(level, percent)
        seen.append(level)
    return seen


def test_each_level_begins_at_its_mark() -> None:
    assert levels(0, 74.9, 75, 84.9, 85, 89.9, 90, 100) == [
        ROOM,
        ROOM,
        WARN,
        WARN,
        STOP,
        STOP,
        FULL,
        FULL,
    ]


def test_a_level_ends_below_its_mark_not_at_it() -> None:
    assert levels(91, 88.1, 88, 84, 83.1, 83, 74, 73) == [
        FULL,
        FULL,
        STOP,
        STOP,
        STOP,
        WARN,
        WARN,
        ROOM,
    ]


def test_a_disk_that_wavers_about_a_mark_changes_nothing() -> None:
    assert set(levels(85, *[84.5, 85.5] * 10)) == {STOP}


def test_marks_must_ascend() -> None:
    assert Disk().watermarks == MARKS
    with pytest.raises(ValueError, match="ascend"):
        Disk(warn_percent=90)


def test_the_watch_says_why_nothing_is_stored() -> None:
    used = iter((50.0, 86.0, 84.0, 80.0))
    watch = DiskWatch(MARKS, lambda: next(used))
    alarms = []
    for _ in range(4):
        watch.look()
        alarms.append(bool(watch.alarm))
    assert alarms == [False, True, True, False]


def test_a_disk_that_cannot_be_seen_keeps_its_level() -> None:
    answers: list[float | OSError] = [86.0, OSError("gone")]

    def look() -> float:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    watch = DiskWatch(MARKS, look)
    watch.look()
    watch.look()
    assert watch.level == STOP


def test_used_is_what_df_says(tmp_path: Path) -> None:
    assert 0 < used_percent(tmp_path) <= 100


def lane() -> tuple[Lane, QuietSource]:
    log = QuietSource()
    made = lane_of(MemoryStore(), log, routes_of(60_000, 100))
    made.adopt(Contracts([(0, Contract())]))
    return made, log


def rows(offsets: Iterable[int]) -> list[Any]:
    headers = [("delay-after", b"1000"), ("delay-target-topic", b"orders")]
    return [(offset, 1_000_000, None, b"v", list(headers)) for offset in offsets]


def test_a_lane_that_may_not_store_fetches_nothing_more_and_goes_on_delivering() -> None:
    made, log = lane()
    made.take_over(Cursor(), Bounds(0, 10))
    made.ingest(PolledBatch((TOPIC, 0), 0, rows(range(10)), 10))
    made.let_store(may_store=False)
    assert log.paused
    assert made.settle_late(1_002_000, 100, lambda: True) == []
    delivered = [one for chunk in made.settle_due(1_002_000, 100, 1 << 20) for one in chunk]
    assert len(delivered) == 10
    made.committed()
    assert log.paused
    made.let_store(may_store=True)
    assert not log.paused


def test_stored_records_are_rebuilt_above_the_stop_watermark() -> None:
    # Else H could not move over it, and what is late or cancelled below S would wait, too.
    made, log = lane()
    made.follow(Cursor())
    made.ingest(PolledBatch((TOPIC, 0), 0, rows(range(10)), 10))
    made.let_store(may_store=False)
    assert log.paused
    made.take_over(Cursor(), Bounds(0, 10))
    assert not log.paused
    assert log.position == 0
    made.ingest(PolledBatch((TOPIC, 0), 0, rows(range(10)), 10))
    assert log.paused


def test_an_owner_that_has_not_read_to_the_end_delivers_what_it_holds() -> None:
    made, _ = lane()
    made.follow(Cursor())
    made.ingest(PolledBatch((TOPIC, 0), 0, rows(range(10)), 10))
    made.let_store(may_store=False)
    made.take_over(Cursor((1, 0), 10), Bounds(0, 50))
    delivered = [one for chunk in made.settle_due(1_002_000, 100, 1 << 20) for one in chunk]
    assert len(delivered) == 10


@pytest.mark.parametrize(
    ("level", "may_store", "syncs"),
    [(ROOM, True, True), (WARN, True, True), (STOP, False, True), (FULL, False, False)],
)
def test_a_full_disk_stops_stores(level: DiskLevel, *, may_store: bool, syncs: bool) -> None:
    stage = Stage(0, limits=Limits(sync_s=0), disk_level=lambda: level)
    lane = stage.lane(0)
    told: list[bool] = [True]
    synced: list[bool] = []
    lane.let_store = lambda *, may_store: told.append(may_store)  # type: ignore[method-assign]
    lane.sync_soon = lambda: synced.append(True)  # type: ignore[method-assign]
    stats = lane.stats()
    lane.stats = lambda: replace(stats, durable_offset=-1)  # type: ignore[method-assign]
    stage.step()
    assert (told[-1], bool(synced)) == (may_store, syncs)


def test_how_long_the_disk_has_not_answered_is_known_while_a_look_waits_for_it() -> None:
    now_s, waited_s = 0.0, []

    def hanging() -> float:
        nonlocal now_s
        now_s += 9.0
        waited_s.append(watch.waiting_s)
        raise OSError("gone")

    watch = DiskWatch(MARKS, hanging, lambda: now_s)
    assert watch.waiting_s == 0.0
    watch.look()
    assert waited_s == [9.0]
    assert watch.waiting_s == 0.0
