"""Dead letters on a real cluster: found, chosen, and replayed exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer

from connectors.kafka.clients import admin_client
from connectors.kafka.dead_letters import DeadLetterTopic, Replayer
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract import replays
from delayservice.contract.entry import RecordPlace
from tests.integration.bench import Bench, Header, Seen, now_ms, served

bench = served(sets=("delivery.park_delays_ms=200", "node.store=memory"))


def dlq(bench: Bench, *arguments: str) -> list[dict[str, Any]]:
    """What ``delayservice dlq`` says in JSON."""
    sets = [part for setting in bench.settings() for part in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "delayservice", "dlq", *arguments, "--json", *sets],
        check=False,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def replayed(bench: Bench, *arguments: str) -> tuple[int, dict[str, int]]:
    """How many were replayed, and how many were skipped for which reason."""
    (told,) = dlq(bench, "replay", "--yes", *arguments)
    return told["replayed"], told["skipped"]


def lettered(bench: Bench, headers: list[Header], **record: Any) -> tuple[int, Seen]:
    """A record that becomes a dead letter: its offset, and the dead letter."""
    _, offset, _ = bench.send(headers, **record)
    return offset, letter_of(bench, offset)


def letter_of(bench: Bench, offset: int) -> Seen:
    source = f"{bench.any}:0:{offset}"
    (letter,) = bench.await_match(
        bench.dead_letter, lambda one: one.header("delay-source") == source
    )
    return letter


class Counted:
    """Matches what was replayed so often."""

    def __init__(self, replays: int) -> None:
        self._replays = str(replays)

    def __call__(self, one: Seen) -> bool:
        """Whether this one was."""
        return one.header("delay-replays") == self._replays


def place(bench: Bench, offset: int) -> str:
    return f"{bench.any}:0:{offset}"


def test_a_record_is_replayed_once_its_target_is_allowed(
    cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Bench(cluster.bootstrap, tmp_path_factory.mktemp("allowed")) as bench:
        target = bench.topic(f"later_{bench.run}")
        service = bench.serve()
        headers = bench.to(target, 0, ("own", b"\xff"), ("delay-id", "id"))
        offset, letter = lettered(bench, headers, key=b"k", value=b"v")
        assert letter.header("delay-error") == "target-denied"
        assert service.stop() == 0
        bench.serve(f"targets.default.allow={target}")

        assert replayed(bench) == (1, {})
        assert replayed(bench) == (0, {"replayed": 1})

        bench.send(bench.to(target, 0), value=b"after")
        found = bench.await_match(target, lambda one: one.value == b"after")
        first, last = bench.read_all(target)
        assert found[0].offset == last.offset
        assert (first.key, first.value, first.own) == (b"k", b"v", [("own", b"\xff")])
        assert first.header("delay-id") == "id"
        assert first.header("delay-replayed-from") == place(bench, offset)
        assert first.header("delay-replays") == "1"
        assert dlq(bench, "list") == []
        (listed,) = dlq(bench, "list", "--all")
        assert listed["replayed"] is True


def test_a_record_refused_at_its_target_is_replayed_with_all_that_it_asked_for(
    bench: Bench,
) -> None:
    missing = bench.target_name("missing")
    due: Header = ("delay-at", str(now_ms() - 1_000))
    headers: list[Header] = [
        due,
        ("delay-target-topic", missing),
        ("delay-target-key", b"other"),
        ("delay-target-partition", "1"),
        ("delay-id", b"lost"),
        ("own", b"1"),
    ]
    offset, letter = lettered(bench, headers, key=b"k", value=b"v")
    assert letter.header("delay-error") == "target-unknown"
    bench.target("missing", 2)

    assert replayed(bench, "--code", "target-unknown", "--source", place(bench, offset)) == (1, {})

    (one,) = bench.read(missing, 1)
    assert (one.key, one.value, one.partition, one.own) == (b"other", b"v", 1, [("own", b"1")])
    assert one.header("delay-due-at") == due[1]
    assert one.header("delay-id") == "lost"
    assert one.header("delay-replayed-from") == place(bench, offset)


def test_a_record_that_stays_broken_comes_back_three_times_and_then_is_left(bench: Bench) -> None:
    target = bench.target("broken")
    first, letter = lettered(bench, [("delay-target-topic", target)], value=b"broken")
    source = letter.header("delay-source")
    for count in (1, 2, 3):
        where = ("--source", letter.header("delay-source") or "")
        assert replayed(bench, *where) == (1, {})
        (letter,) = bench.await_match(bench.dead_letter, Counted(count))
        assert letter.header("delay-replayed-from") == source
        assert letter.header("delay-source") != source
    where = ("--source", letter.header("delay-source") or "")
    assert replayed(bench, *where) == (0, {"replays-max": 1})
    assert replayed(bench, *where, "--replays-max", "4", "--after", "0") == (1, {})
    (one,) = bench.read(target, 1)
    assert (one.value, one.header("delay-replays")) == (b"broken", "4")
    assert one.header("delay-replayed-from") == place(bench, first)


def test_filters_choose_and_a_dry_run_writes_nothing(bench: Bench) -> None:
    target = bench.target("filters")
    since = now_ms()
    missing, _ = lettered(bench, [("delay-target-topic", target)], value=b"time missing")
    invalid, _ = lettered(bench, bench.to("elsewhere", 0), key=b"k", value=b"denied")
    until = now_ms() + 1
    late, _ = lettered(bench, [("delay-target-topic", target)], value=None)

    def found(*arguments: str) -> list[str]:
        return [one["source"] for one in dlq(bench, "list", "--from", str(since), *arguments)]

    here = [place(bench, offset) for offset in (missing, invalid, late)]
    assert found() == here
    assert found("--code", "time-missing") == [here[0], here[2]]
    assert found("--to", str(until), "--limit", "1") == here[:1]
    (shown,) = dlq(bench, "list", "--source", here[1], "--values")
    assert (shown["code"], shown["target"]) == ("target-denied", "elsewhere")
    assert (shown["key"], shown["value"], shown["key_bytes"]) == ("k", "denied", 1)

    (plan,) = dlq(bench, "replay", "--dry-run", "--from", str(since), "--code", "time-missing")
    assert plan["replayed"] == 2
    assert found() == here
    assert replayed(bench, "--from", str(since), "--limit", "1", "--after", "0") == (1, {})
    assert found() == here[1:]


def test_a_letter_that_comes_back_during_a_replay_is_left_for_the_next(bench: Bench) -> None:
    since = str(now_ms())
    offsets = [bench.send([("own", b"%d" % number)])[1] for number in range(1_200)]
    letter_of(bench, offsets[-1])
    assert replayed(bench, "--from", since) == (1_200, {})
    bench.await_match(
        bench.dead_letter,
        lambda one: one.timestamp_ms >= int(since) and one.header("delay-replays") == "1",
        1_200,
    )
    assert replayed(bench, "--from", since) == (1_200, {"replayed": 1_200})


def test_a_record_that_has_outgrown_its_delay_topic_is_left_and_the_others_go(bench: Bench) -> None:
    target = bench.target("grown")
    since = str(now_ms())
    lettered(bench, [("delay-target-topic", target)], value=b"small")
    lettered(bench, [("delay-target-topic", target)], value=b"x" * 3_000)
    lettered(bench, [("delay-target-topic", target)], value=b"small, too")
    bench.alter(bench.any, max_message_bytes="2000")
    try:
        assert replayed(bench, "--from", since, "--after", "0") == (2, {"refused": 1})
    finally:
        bench.alter(bench.any, max_message_bytes="1048588")
    assert {one.value for one in bench.read(target, 2)} == {b"small", b"small, too"}
    assert replayed(bench, "--from", since, "--after", "0") == (1, {"replayed": 2})
    assert len(bench.read(target, 3)) == 3


def test_of_two_replays_at_once_the_later_one_counts(bench: Bench) -> None:
    target = bench.target("fenced")
    offset, _ = lettered(bench, [("delay-target-topic", target)], value=b"once")
    client = {"bootstrap.servers": bench.bootstrap}
    topic = DeadLetterTopic(bench.dead_letter, 1, client, admin_client(client))
    source = RecordPlace(bench.any, 0, offset)
    (letter,) = (one for one in topic.letters(lambda _: None) if one.source == source)
    record = replays.rewritten(letter, source, ("delay-after", b"0"))
    transactional_id = f"tx-{bench.run}-dlq-replay"
    with (
        Replayer(bench.dead_letter, transactional_id, client) as earlier,
        Replayer(bench.dead_letter, transactional_id, client) as later,
    ):
        with pytest.raises(KafkaEdgeError, match="another replay has taken over"):
            earlier.replay([(letter, record)])
        assert later.replay([(letter, record)]) == {}
    assert replayed(bench, "--source", place(bench, offset)) == (0, {"replayed": 1})
    assert len(bench.read(target, 1)) == 1


def test_the_open_transaction_of_a_killed_replay_is_aborted_and_repeated(bench: Bench) -> None:
    target = bench.target("killed")
    offset, letter = lettered(bench, [("delay-target-topic", target)], value=b"once")
    killed = Producer(
        {
            "bootstrap.servers": bench.bootstrap,
            "transactional.id": f"tx-{bench.run}-dlq-replay",
            "log_level": 0,
        }
    )
    killed.init_transactions(30)
    killed.begin_transaction()
    headers: list[Header] = [("delay-after", "0"), ("delay-target-topic", target)]
    killed.produce(bench.any, b"once", partition=0, headers=list(headers))
    marker = replays.marker([letter.offset])
    killed.produce(bench.dead_letter, None, partition=0, headers=list(marker))
    assert killed.flush(30) == 0

    assert replayed(bench, "--source", place(bench, offset), "--after", "0") == (1, {})

    bench.send(bench.to(target, 0), value=b"after")
    bench.await_match(target, lambda one: one.value == b"after")
    assert [one.value for one in bench.read_all(target)] == [b"once", b"after"]
