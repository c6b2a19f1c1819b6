"""The judge of the demo and of the tests must be able to say no."""

import time
from collections.abc import Callable

from confluent_kafka import Producer

from delay_devtools.cluster import EmbeddedCluster
from delayservice.smoke.judge import Judge, SmokeVerdict
from delayservice.smoke.sending import UID_HEADER, Planned

NOW_MS = time.time_ns() // 1_000_000
PAST_MS = NOW_MS - 10_000
FUTURE_MS = NOW_MS + 600_000
MakeTopic = Callable[..., str]


def planned(uid: bytes, target: str) -> Planned:
    return Planned(uid, b"key", b"value", ((UID_HEADER, uid), ("own", b"1")), 0, target)


def write(
    producer: Producer, record: Planned, *, due_ms: int, value: bytes | None = b"value"
) -> None:
    headers = [*record.headers, ("delay-due-at", b"%d" % due_ms), ("delay-source", b"t:0:1")]
    producer.produce(record.target, value, record.key, headers=list(headers), timestamp=NOW_MS)


def judge_all(
    cluster: EmbeddedCluster, topic: str, sent: list[tuple[Planned, int]]
) -> SmokeVerdict:
    judge = Judge(cluster.bootstrap, [topic])
    try:
        judge.read_to_end(len({p.uid for p, _ in sent}) - 1, lambda _: None)
        return judge.verdict(sent)
    finally:
        judge.close()


def test_every_kind_of_wrong_is_found_and_nothing_is_invented(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic("judged", partitions=2)
    good, twice, altered, early, lost, moved = (
        planned(uid, topic) for uid in (b"good", b"twice", b"altered", b"early", b"lost", b"moved")
    )
    sent = [(record, PAST_MS) for record in (good, twice, altered, lost, moved)]
    sent.append((early, FUTURE_MS))
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    write(producer, good, due_ms=PAST_MS)
    write(producer, twice, due_ms=PAST_MS)
    write(producer, twice, due_ms=PAST_MS)
    write(producer, altered, due_ms=PAST_MS, value=b"other")
    write(producer, early, due_ms=FUTURE_MS)
    write(producer, moved, due_ms=PAST_MS + 1)
    write(producer, planned(b"stranger", topic), due_ms=PAST_MS)
    assert producer.flush(30) == 0

    verdict = judge_all(cluster, topic, sent)

    assert verdict.lost == [b"lost"]
    assert verdict.duplicated == [b"twice"]
    assert verdict.early == [b"early"]
    assert sorted(verdict.altered) == [b"altered", b"moved"]
    assert verdict.strangers == [b"stranger"]
    assert not verdict.is_good


def test_what_arrived_as_planned_is_good(cluster: EmbeddedCluster, make_topic: MakeTopic) -> None:
    topic = make_topic("judged", partitions=2)
    record = planned(b"good", topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    write(producer, record, due_ms=PAST_MS)
    assert producer.flush(30) == 0
    assert judge_all(cluster, topic, [(record, PAST_MS), (record, PAST_MS)]).is_good
