"""What the log says of controls, and what a survey of the dead letters reads, on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer

from connectors.kafka.clients import admin_client
from connectors.kafka.controls import ControlClient
from connectors.kafka.dead_letters import DeadLetterTopic
from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract import replays
from delayservice.contract.entry import RecordPlace
from tests.conftest import MakeTopic
from tests.elapsed import at_most

ONE, TWO = RecordPlace("delay_topic_any", 0, 5), RecordPlace("delay_topic_any", 1, 5)
KB = 1_024


def told(place: RecordPlace, outcome: str) -> list[tuple[str, str | bytes | None]]:
    """The headers of an outcome."""
    shard = f"{place.topic}:{place.partition}"
    return [
        ("delay-outcome", outcome),
        ("delay-shard", shard),
        ("delay-settles", str(place.offset)),
    ]


def outcomes_topic(cluster: EmbeddedCluster, make_topic: MakeTopic) -> str:
    """One that has a leader beyond doubt: it has taken a record."""
    topic = make_topic("outcomes")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, headers=told(ONE, "fired"))
    assert producer.flush(30) == 0
    return topic


def desk_of(cluster: EmbeddedCluster, outcomes: str) -> ControlClient:
    options = {"bootstrap.servers": cluster.bootstrap}
    return ControlClient(options, options, admin_client(options), outcomes)


def test_the_outcomes_of_several_controls_are_heard_in_whatever_order_they_come(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    topic = outcomes_topic(cluster, make_topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    with desk_of(cluster, topic).listen() as outcomes:
        producer.produce(topic, headers=told(RecordPlace("delay_topic_any", 0, 4), "fired"))
        producer.produce(topic, headers=told(TWO, "cancelled"))
        producer.produce(topic, headers=told(ONE, "not_pending"))
        assert producer.flush(30) == 0
        heard = outcomes.of([ONE, TWO], 30, replaces=False)
    assert heard == {ONE: "not_pending", TWO: "cancelled"}


def test_several_controls_share_one_deadline_and_what_is_known_by_then_is_told(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    topic = outcomes_topic(cluster, make_topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    with desk_of(cluster, topic).listen() as outcomes:
        producer.produce(topic, headers=told(TWO, "cancelled"))
        assert producer.flush(30) == 0
        began_s = time.monotonic()
        with at_most(30):
            heard = outcomes.of([ONE, TWO, RecordPlace("delay_topic_any", 2, 5)], 4, replaces=False)
        assert time.monotonic() - began_s >= 4
    assert heard == {TWO: "cancelled"}


def test_a_desk_that_is_stopped_ends_the_waits(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    desk = desk_of(cluster, outcomes_topic(cluster, make_topic))
    threading.Timer(0.3, desk.stop).start()
    with at_most(60), desk.listen() as outcomes:
        assert outcomes.of([ONE], 120, replaces=False) == {}


def letters_of(cluster: EmbeddedCluster, topic: str, *sizes: int) -> Callable[..., DeadLetterTopic]:
    """Write dead letters with values of these sizes; gives what looks at them."""
    options = {"bootstrap.servers": cluster.bootstrap}
    producer = Producer({**options, "message.max.bytes": 1_000_000})
    for number, size in enumerate(sizes):
        code = "time-missing" if number % 2 else "target-missing"
        producer.produce(topic, b"v" * size, headers=[("delay-error", code)], partition=0)
    assert producer.flush(30) == 0
    return lambda last=2_000: DeadLetterTopic(topic, 1, options, admin_client(options), last)


def test_a_survey_gives_the_newest_letters_first(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic("dead")
    look = letters_of(cluster, topic, *range(100, 200))
    survey = look().survey(None, 1 << 20)
    assert [(one.offset, len(one.value or b"")) for one in survey.letters] == [
        (number, 100 + number) for number in reversed(range(100))
    ]
    assert (survey.held, survey.looked_at) == (100, 100)
    fewer = look(30).survey(None, 1 << 20)
    assert [one.offset for one in fewer.letters] == list(reversed(range(70, 100)))
    assert (fewer.held, fewer.looked_at) == (100, 30)
    odd = look().survey("time-missing", 1 << 20)
    assert [one.offset for one in odd.letters] == list(range(99, 0, -2))
    assert odd.looked_at == 100


def test_a_survey_reads_no_more_than_it_may_and_says_how_far_it_came(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    look = letters_of(cluster, make_topic("dead"), *[100 * KB] * 30, 10, 20)
    survey = look().survey(None, 2_000 * KB)
    assert len(survey.letters[0].value or b"") == 20
    assert 2 <= survey.looked_at < 22
    assert [one.offset for one in survey.letters] == [31 - n for n in range(survey.looked_at)]


def test_a_survey_knows_what_was_replayed(cluster: EmbeddedCluster, make_topic: MakeTopic) -> None:
    topic = make_topic("dead")
    look = letters_of(cluster, topic, 1, 2, 3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, headers=dict(replays.marker([1])), partition=0)
    assert producer.flush(30) == 0
    survey = look().survey("time-missing", KB)
    assert survey.replayed == {(0, 1)}
    assert [one.place for one in survey.letters] == [(0, 1)]
    assert survey.looked_at == 4
