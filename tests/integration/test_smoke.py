"""``delayservice smoke`` beside a real service, and the judge's reading of a log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Message, Producer

from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import ClusterError
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, judge
from delayservice.smoke.load import AFTER, Batch, Loaded, LoadPlan, load
from tests.integration.bench import Bench, await_true
from tests.integration.secured import Right, secure_cluster

BATCH = Batch(b"abcdefgh", 3, 40, 7)
MakeTopic = Callable[..., str]


def smoke(settings: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "delayservice", "smoke", *words]
    for setting in settings:
        command += ["--set", setting]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_smoke_uses_every_setting_of_its_clients_and_leaves_strangers_alone(
    tmp_path: Path,
) -> None:
    with (
        secure_cluster(tmp_path) as secure,
        Bench(secure.bootstrap, tmp_path, partitions=2) as bench,
    ):
        target = bench.target("smoke", 2)
        bench.serve()
        secure.add_user("tester")
        rights = [Right("topic", bench.any, word) for word in ("Write", "Describe")]
        rights += [Right("topic", target, word) for word in ("Read", "Describe")]
        secure.grant("tester", rights)
        stranger = Producer({"bootstrap.servers": secure.bootstrap})
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.05):
                stranger.produce(target, b"not from here", b"key", headers=[("load-uid", b"1")])
                stranger.poll(0)

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        words = ("--target", target, "--records", "160", "--rate", "200", "--delay-max", "2s")
        try:
            done = smoke(secure.settings("tester"), "--topic", bench.any, *words, "--json")
        finally:
            stop.set()
            disturbing.join()
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert (found["sent"], found["delivered"], found["withdrawn"]) == (160, 120, 40)
        assert found["strangers"] > 0
        text = smoke(secure.settings("tester"), "--topic", bench.any, *words).stdout
        assert "120 of 120 records arrived" in text
        assert "{" not in text


def test_smoke_without_brokers_or_target_ends_at_once() -> None:
    environment = {n: v for n, v in os.environ.items() if not n.startswith("DELAYSERVICE")}
    for words, status, complaint in (
        (("--target", "orders"), 1, "kafka.bootstrap is not set"),
        ((), 2, "Missing option '--target'"),
        (("--target", "orders", "--delay-max", "10", "-b", "127.0.0.1:1"), 2, "unit"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "delayservice", "smoke", *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,  # it would wait longer for brokers
            env=environment,
        )
        assert (done.returncode, complaint in done.stderr) == (status, True), done.stderr


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic("judged", partitions=2)


def outputs(*numbers: int) -> list[Message]:
    return [
        Message(key=key, value=value) for key, value, _ in (BATCH.record(n, 1) for n in numbers)
    ]


def write(producer: Producer, topic: str, *numbers: int) -> None:
    for one in outputs(*numbers):
        producer.produce(topic, one.value(), one.key())
    assert producer.flush(30) == 0


@pytest.mark.parametrize("stamp", ["LogAppendTime", "CreateTime"])
def test_only_the_brokers_time_of_a_record_counts_as_its_append_time(
    cluster: EmbeddedCluster, make_topic: MakeTopic, stamp: str
) -> None:
    batch = Batch(b"appended", 16, 40, 7, is_mixed=True)
    topic = make_topic("stamped", config={"message.timestamp.type": stamp})
    with Helper(
        load, LoadPlan({"bootstrap.servers": cluster.bootstrap}, topic, ("t",), batch)
    ) as by:
        by.tell()
        loaded = by.expect(Loaded)
    known = [number for number in range(batch.n) if batch.kind(number) in AFTER]
    assert sorted(loaded.appended_ms) == (known if stamp == "LogAppendTime" else [])


def test_a_double_behind_an_open_transaction_is_awaited_and_seen(
    cluster: EmbeddedCluster, topic: str
) -> None:
    client = {"bootstrap.servers": cluster.bootstrap}
    late = Producer({**client, "transactional.id": topic})
    late.init_transactions(30)
    with Helper(judge, JudgePlan(client, (topic,), BATCH)) as judging:
        write(Producer(client), topic, 0, 1, 2)
        await_true(lambda: judging.count == BATCH.n, "all were read")
        late.begin_transaction()
        write(late, topic, 1)
        judging.tell(Loaded(BATCH.n))
        with pytest.raises(ClusterError, match="judge did not answer within 3 s"):
            judging.expect(Verdict, timeout_s=3)
        late.commit_transaction(30)
        verdict = judging.expect(Verdict)
    assert (verdict.delivered, verdict.duplicated, verdict.lost) == (3, 1, 0)


def test_a_judge_reads_what_follows_its_beginning_and_says_what_is_lost(
    cluster: EmbeddedCluster, topic: str
) -> None:
    client = {"bootstrap.servers": cluster.bootstrap}
    producer = Producer(client)
    write(producer, topic, 0, 1, 1)
    with Helper(judge, JudgePlan(client, (topic,), BATCH, from_end=True, stall_s=1)) as judging:
        write(producer, topic, 0)
        judging.tell(Loaded(2))
        verdict = judging.expect(Verdict)
    assert (verdict.delivered, verdict.lost, verdict.duplicated) == (1, 1, 0)
    assert verdict.examples == {"lost": ["record 1, a KEYED"]}


def test_a_judge_that_dies_is_an_error(cluster: EmbeddedCluster, topic: str) -> None:
    client = {"bootstrap.servers": cluster.bootstrap}
    before = set(psutil.Process().children())
    with Helper(judge, JudgePlan(client, (topic,), BATCH)) as judging:
        for child in set(psutil.Process().children()) - before:
            child.kill()
        with pytest.raises(ClusterError, match="judge ended before it was done"):
            judging.expect(Verdict)
