"""What a worker makes of its looks at the delay topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import structlog

from connectors.kafka.topic_facts import ServedTopic, TopicProblem, TopicsSnapshot
from delayservice.base.errors import KafkaEdgeError
from delayservice.process.watches import MadeAgain, TopicWatcher

GOOD = ServedTopic("delay_topic_any", "id-1", 2, ())
RISKY = replace(GOOD, risks=("retention.ms is 1",))


@dataclass
class Cluster:
    """What the looks see, and when."""

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
def test_a_first_look_that_fails_is_a_problem_at_once(
    cluster: Cluster, watcher: TopicWatcher, error: Exception
) -> None:
    cluster.answer = error
    assert watcher.refresh() is None
    assert [str(error) in text for text in watcher.problems()] == [True]


@pytest.mark.parametrize("error", ERRORS)
def test_served_topics_stay_when_a_look_fails_and_show_their_age(
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


def test_a_topic_at_risk_is_not_begun_unless_its_records_may_be_pending(
    cluster: Cluster, watcher: TopicWatcher
) -> None:
    cluster.answer = (RISKY,)
    watcher.refresh()
    assert watcher.served == []
    assert watcher.problems() == ["delay_topic_any is not served: retention.ms is 1"]
    cluster.checkpointed.add(RISKY.topic_id)
    watcher.refresh()
    assert watcher.served == [RISKY]


def test_another_topic_of_the_same_name_is_a_new_one(
    cluster: Cluster, watcher: TopicWatcher
) -> None:
    watcher.refresh()
    cluster.answer = (replace(RISKY, topic_id="id-2"),)
    watcher.refresh()
    assert watcher.served == []


@pytest.mark.parametrize(
    "problem", ["delay_checkpoint: cleanup.policy is delete", "delay_outcomes does not exist"]
)
def test_a_wrong_own_topic_is_a_problem_until_it_is_corrected(
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


def test_a_topic_that_is_made_again_is_said_once_and_whether_it_was_missing_before(
    cluster: Cluster, watcher: TopicWatcher
) -> None:
    said = []
    for ids in ({"a": "1", "b": "1"}, {"a": "2"}, {"a": "2", "b": "2"}, {"a": "2", "b": "2"}):
        cluster.ids = ids
        said.append(watcher.refresh())
    assert said == [[], [MadeAgain("a", was_missing=False)], [MadeAgain("b", was_missing=True)], []]
