"""Records of a topic, scheduled once each: in this process, stopped where it hurts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from pyspark.errors import PySparkException
from tenacity import Retrying, stop_after_delay, wait_fixed

from connectors.kafka.clients import admin_client
from connectors.kafka.dead_letters import partition_counts
from connectors.spark.schedule.check import ROW_UNREADABLE
from connectors.spark.schedule.mapping import Fields
from connectors.spark.schedule.stream import INFER, Stream
from delayservice.base import faults
from delayservice.base.errors import InvalidRequestError
from tests.conftest import MakeTopic
from tests.described import topic_id_of
from tests.integration.bench import await_true
from tests.spark.schedule_desk import DUE_MS, SCHEMA, WAIT_S, Desk, Feed


@pytest.fixture
def feed(desk: Desk, make_topic: MakeTopic, tmp_path: Path) -> Feed:
    topic = make_topic("feed", partitions=2)
    admin = admin_client(desk.client)
    await_true(lambda: topic in partition_counts(admin), "the topic is there")
    return Feed(desk, topic, tmp_path)


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something done at the end of each batch, before Spark notes it."""

    def bind(act: Callable[[], None]) -> None:
        points = {"bulk_written": act}
        monkeypatch.setattr(faults, "point", lambda name: points.get(name, nothing)())

    return bind


def break_off(
    feed: Feed, at_point: Callable[[Callable[[], None]], None], *given: Any, **changed: Any
) -> None:
    """Have a run lose its power when a batch is written, before Spark notes it."""
    at_point(lose_power)
    with pytest.raises(PySparkException, match="no power"):
        feed.run(*given, **changed)
    at_point(nothing)


def nothing() -> None:
    """All is well."""


def lose_power() -> None:
    raise OSError("no power")


def test_rows_of_a_topic_are_scheduled_once_and_later_runs_go_on(feed: Feed) -> None:
    feed.add(*feed.desk.reminders(30))
    assert feed.run().written == 30
    assert feed.run().written == 0
    feed.add(*feed.desk.reminders(5, name="more")[:1], *feed.desk.reminders(40)[35:])
    assert feed.run().written == 6
    written = feed.desk.written()
    names = [f"reminder-{n}".encode() for n in [*range(30), *range(35, 40)]]
    assert sorted(seen.key or b"" for seen in written) == sorted([b"more", *names])
    (seen,) = (seen for seen in written if seen.key == b"reminder-3")
    assert seen.value == b"text 3"
    assert dict(seen.headers) == {
        "delay-at": b"%d" % (DUE_MS + 3),
        "delay-target-topic": feed.desk.target.encode(),
        "delay-id": b"reminder-3",
        "delay-target-key": b"u3",
    }


def test_bad_records_are_rejected_with_their_place_and_the_others_go_on(feed: Feed) -> None:
    (good,) = feed.desk.reminders(1)
    feed.add(b"{nothing", good, None, good | {"due": None}, b'{"due": "soon"}', b"[1]")
    done = feed.run()
    assert (done.written, done.rejected) == (1, {ROW_UNREADABLE: 4, "time-invalid": 1})
    places = {
        0: ROW_UNREADABLE,
        2: ROW_UNREADABLE,
        3: "time-invalid",
        4: ROW_UNREADABLE,
        5: ROW_UNREADABLE,
    }
    assert feed.rejected() == {f"{feed.topic}:0:{n}": code for n, code in places.items()}
    first = feed.desk.spark.read.parquet(f"{feed.desk.rejected_path}/*").orderBy("file").first()
    assert first is not None
    assert first["row"] == "{nothing"


def test_without_a_mapping_a_record_goes_on_as_it_is_with_its_place_as_id(feed: Feed) -> None:
    feed.add(b"\xff\x00", key=b"k")
    fields = Fields(
        target=f"={feed.desk.target}", after="2h", job="job", headers=[("h", "kafka.key")]
    )
    assert feed.run(fields, schema=None).written == 1
    (seen,) = feed.desk.written()
    assert (seen.key, seen.value) == (b"job:0:0", b"\xff\x00")
    assert dict(seen.headers)["delay-target-key"] == dict(seen.headers)["h"] == b"k"
    assert dict(seen.headers)["delay-after"] == b"7200000"


def test_a_schema_is_inferred_once_and_kept(feed: Feed) -> None:
    feed.add(b"no JSON", *feed.desk.reminders(3))
    assert feed.run(schema=INFER).written == 3
    feed.add({"name": "x", "due": DUE_MS, "text": "t", "new": 1})
    assert feed.run(schema=INFER).written == 1


def test_of_one_id_the_later_record_is_written_later(feed: Feed) -> None:
    texts = [f"text {n}" for n in range(40)]
    feed.add(*(feed.desk.reminders(1, text=text)[0] for text in texts))
    feed.run()
    assert [(seen.value or b"").decode() for seen in feed.desk.written()] == texts


def test_a_batch_that_was_not_noted_is_neither_written_nor_judged_again(
    feed: Feed, at_point: Callable[[Callable[[], None]], None]
) -> None:
    later = f"to_{feed.topic}"
    feed.add(*feed.desk.reminders(10, where=feed.desk.target))
    feed.add(*feed.desk.reminders(15, where=later)[10:])
    fields, schema = feed.desk.fields(target="where"), f"{SCHEMA}, where string"
    break_off(feed, at_point, fields, schema=schema)
    rejected = feed.rejected()
    assert Counter(rejected.values()) == {"target-unknown": 5}
    admin = admin_client(feed.desk.client)
    admin.create_topics([NewTopic(later, 1, 1)])[later].result(30)
    await_true(lambda: later in partition_counts(admin), "the target has come to be")
    done = feed.run(fields, schema=schema)
    assert (done.batches, done.written, done.rejected.total()) == (1, 0, 5)
    assert feed.rejected() == rejected
    assert len(feed.desk.written()) == 10


def test_a_batch_that_was_begun_is_completed_by_the_options_that_began_it(
    feed: Feed, at_point: Callable[[Callable[[], None]], None]
) -> None:
    feed.add(*feed.desk.reminders(9))
    break_off(feed, at_point)
    other = feed.desk.fields(id="text")  # its ids lie in other parts
    with pytest.raises(PySparkException, match="begun with another mapping"):
        feed.run(other)
    assert feed.run().batches == 1
    feed.add(*feed.desk.reminders(12)[9:])
    assert feed.run(other).written == 3
    keys = {seen.key for seen in feed.desk.written()}
    assert keys == {b"reminder-%d" % n for n in range(9)} | {b"text %d" % n for n in range(9, 12)}


def test_where_the_marks_have_expired_in_the_middle_of_a_batch_nothing_is_guessed(
    feed: Feed, at_point: Callable[[Callable[[], None]], None]
) -> None:
    feed.add(*feed.desk.reminders(9))
    break_off(feed, at_point)
    forget_marks(feed)
    with pytest.raises(PySparkException, match=r"offsets\.retention\.minutes"):
        feed.run()
    assert len(feed.desk.written()) == 9


def test_where_the_marks_have_expired_between_two_batches_they_are_not_missed(feed: Feed) -> None:
    feed.add(*feed.desk.reminders(9))
    feed.run()
    forget_marks(feed)
    feed.add(*feed.desk.reminders(12)[9:])
    assert feed.run().written == 3
    assert len(feed.desk.written()) == 12


def forget_marks(feed: Feed) -> None:
    name = json.loads((feed.folder / "state" / "schedule.json").read_text())["name"]
    admin = admin_client(feed.desk.client)
    for done in admin.delete_consumer_groups([name]).values():
        done.result(30)


def test_a_running_stream_takes_what_comes(feed: Feed) -> None:
    stream = feed.start(every_ms=100)
    for n in range(3):
        feed.add(*feed.desk.reminders(n + 1)[n:])
        await_true(partial(is_written, stream, n + 1), "it is written", WAIT_S)
    stream.stop()
    assert stream.batches == 3


def is_written(stream: Stream, count: int) -> bool:
    return stream.written == count


def test_decisions_that_rejected_nothing_are_not_kept(feed: Feed) -> None:
    for n in range(3):
        feed.add(*feed.desk.reminders(n + 1)[n:])
    feed.run(records_max=1)
    (folder,) = Path(feed.desk.rejected_path).iterdir()
    assert [one.name for one in folder.iterdir()] == ["batch=2"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"from_topic": "nowhere"}, "there is no topic nowhere"),
        ({"schema": "name strng"}, "strng"),
        ({"schema": "string"}, "does not name columns"),
        ({"schema": "name string"}, "no column 'due', it has name, kafka.key"),
        ({"schema": INFER}, "hold no JSON objects"),
    ],
)
def test_options_that_contradict_the_source_are_refused_at_the_start(
    feed: Feed, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        feed.run(feed.desk.fields(value=None, key=None), **changed)
    assert not (feed.folder / "state").exists()


def test_where_its_topic_is_created_again_a_stream_ends_and_no_later_one_begins(
    feed: Feed, at_point: Callable[[Callable[[], None]], None]
) -> None:
    def replaced() -> None:
        at_point(nothing)
        recreate(feed)
        feed.add(*feed.desk.reminders(25, user="new"))

    feed.add(*feed.desk.reminders(10))
    at_point(replaced)
    stream = feed.start(every_ms=100)
    await_true(lambda: not stream.is_active, "it ends", WAIT_S)
    with pytest.raises(PySparkException, match=f"topic {feed.topic} was deleted"):
        stream.stop()
    with pytest.raises(InvalidRequestError, match=f"topic {feed.topic} was deleted"):
        feed.run()
    assert len(feed.desk.written()) == 10


def recreate(feed: Feed) -> None:
    """Delete the topic and create it again."""
    admin = admin_client(feed.desk.client)
    former = topic_id_of(admin, feed.topic)
    admin.delete_topics([feed.topic])[feed.topic].result(30)
    for attempt in Retrying(stop=stop_after_delay(WAIT_S), wait=wait_fixed(0.1)):
        with attempt:  # the broker forgets a deleted topic after a while
            admin.create_topics([NewTopic(feed.topic, 2, 1)])[feed.topic].result(30)
    await_true(lambda: topic_id_of(admin, feed.topic) != former, "the topic is another one")
    feed.producer = Producer(feed.desk.client)  # the other one remembers the topic


def test_a_folder_is_of_one_stream(feed: Feed, make_topic: MakeTopic) -> None:
    feed.add(*feed.desk.reminders(1))
    feed.run()
    other = make_topic("feed")
    with pytest.raises(InvalidRequestError, match=rf"is of the stream from {feed.topic} to"):
        feed.run(from_topic=other)
