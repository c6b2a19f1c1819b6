"""A broker with TLS, passwords and ACLs: what docs/security.md lists is enough, and is needed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tests.integration.bench import Bench, Header, Seen, await_true
from tests.integration.secured import (
    PASSWORD,
    Right,
    SecureCluster,
    named,
    rights_of,
    secure_cluster,
)

SERVICE = rights_of("The service")
CREATES = rights_of("The service, if it makes its topics")
PRODUCER = rights_of("A producer")
CONSUMER = rights_of("A consumer")
OPERATOR = rights_of("A dead-letter operator")
FIT = {"message_timestamp_type": "LogAppendTime"}
WRONG = "wr0ng-Pa55word"
ROLL_MS = 1_500
PARK_MS = 300


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    with secure_cluster(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture
def bench(secure: SecureCluster, tmp_path: Path) -> Iterator[Bench]:
    """What it starts is the user ``service-…``, without rights so far; itself is a super user."""
    sets = [
        "node.workers=1",
        "node.store=memory",
        "topics.create=false",
        f"delivery.park_delays_ms={PARK_MS}",
        f"delivery.roll_window_ms={ROLL_MS}",
    ]
    with Bench(secure.bootstrap, tmp_path, sets=sets) as running:
        running._sets += secure.settings(user(running))  # it names the run
        secure.add_user(user(running))
        yield running


def user(bench: Bench) -> str:
    return f"service-{bench.run}"


def make_topics(bench: Bench) -> None:
    bench.topic(bench.any, 1, **FIT)
    bench.topic(bench.checkpoint, 1, cleanup_policy="compact", **FIT)
    bench.topic(bench.claims, 1, cleanup_policy="compact", **FIT)
    bench.topic(bench.dead_letter, 1, max_message_bytes="2097152")
    bench.topic(bench.outcomes, 1, max_message_bytes="2097152")
    bench.topic(bench.digests, 1, cleanup_policy="compact")
    bench.topic(bench.repairs, 1)
    bench.topic(bench.audit, 1)
    bench.topic(bench.pauses, 1, cleanup_policy="compact")


def grant(secure: SecureCluster, bench: Bench, rights: Sequence[Right], who: str = "") -> None:
    secure.grant(who or user(bench), named(bench, rights))


def dead_letter(bench: Bench, value: bytes) -> Seen:
    (found,) = bench.await_match(bench.dead_letter, lambda one: one.value == value)
    return found


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "delayservice", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=120,
    )


def as_sets(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


# --- the service ---------------------------------------------------------------------------------


def test_the_listed_rights_are_enough_for_all_that_the_service_does(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, SERVICE)
    make_topics(bench)
    target = bench.target("all")
    service = bench.serve()
    bench.send(bench.to(target, 0), value=b"at once")
    bench.send(bench.to(target, 600_000, ("delay-id", "x")), value=b"to be cancelled")
    bench.send([("delay-id", "x"), ("delay-op", "cancel")])
    bench.send([("delay-target-topic", target)], value=b"no time")
    bench.send(bench.to(bench.target_name("missing"), 0), value=b"no target")
    bench.send(bench.to(target, 2 * ROLL_MS), value=b"rolled")
    bench.await_match(bench.outcomes, lambda one: one.header("delay-outcome") == "cancelled")
    assert dead_letter(bench, b"no time").header("delay-error") == "time-missing"
    assert dead_letter(bench, b"no target").header("delay-error") == "target-unknown"
    bench.await_match(bench.any, lambda one: one.header("delay-copy"))
    service.kill()
    again = bench.serve()
    bench.send(bench.to(target, 0), value=b"after the restart")
    assert sorted(one.value or b"" for one in bench.read(target, 3)) == [
        b"after the restart",
        b"at once",
        b"rolled",
    ]
    assert again.stop() == 0
    for event in (
        "slice_interrupted",
        "take_over_failed",
        "writer_not_opened",
        "ownership_lost",
        "pauses_not_read",
        "repair_topic_not_read",
    ):
        assert again.events(event) == []


def test_the_rights_to_make_topics_are_enough_for_new_topics_and_new_partitions(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, [*SERVICE, *CREATES])
    service = bench.serve("topics.create=true")
    target = bench.target("made")
    bench.send(bench.to(target, 0), value=b"in 0")
    bench.grow(bench.any, 2)
    bench.producer.list_topics(bench.any, timeout=10)
    bench.send(bench.to(target, 0), partition=1, value=b"in 1")
    assert {one.value for one in bench.read(target, 2)} == {b"in 0", b"in 1"}
    assert service.stop() == 0


def told(bench: Bench) -> str:
    return bench.log_path.read_text("utf-8")


TOLD_OTHERWISE = {
    Right("topic", "delay_topic_*", "DescribeConfigs"): "DescribeConfigs on the topic",
    Right("topic", "delay_dead_letter", "DescribeConfigs"): (
        "the configuration of {dead_letter} can't be read: give the service DescribeConfigs"
    ),
    Right("topic", "delay_digests", "Write"): "missing topics: {digests}",
    Right("topic", "delay_audit", "Read"): "missing topics: {audit}",
    Right("transactional-id", "delayservice-*", "Write"): (
        "give the service Write on transactional ids that begin with tx-{run}-"
    ),
}
"""What the service says without these rights; without another one it names right and topic."""
FOR_THE_API = {
    Right("topic", "delay_dead_letter", "Read"),
    Right("topic", "delay_outcomes", "Read"),
    Right("topic", "delay_pauses", "Write"),
}
TARGET_WRITE = Right("topic", "orders*", "Write")
TARGET_CONFIGS = Right("topic", "orders*", "DescribeConfigs")


OWN = [one for one in SERVICE if one not in {*FOR_THE_API, TARGET_WRITE, TARGET_CONFIGS}]
"""Without one of these the service does not serve; of the others there are tests of their own."""


def test_every_special_right_is_on_the_page() -> None:
    assert {*TOLD_OTHERWISE, *FOR_THE_API, TARGET_WRITE, TARGET_CONFIGS} <= set(SERVICE)
    assert len(set(SERVICE)) == len(SERVICE)


def test_without_the_rights_of_the_admin_api_the_service_says_so_and_delivers(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, [one for one in SERVICE if one not in FOR_THE_API])
    make_topics(bench)
    target = bench.target("one")
    service = bench.serve()
    bench.send(bench.to(target, 0), value=b"delivered")
    assert [one.value for one in bench.read(target, 1)] == [b"delivered"]
    said = " ".join(str(event["why"]) for event in service.events("admin_right_missing"))
    for topic, right in ((bench.dead_letter, "Read"), (bench.outcomes, "Read")):
        assert f"give the service {right} on {topic}" in said
    assert f"give the service Write on {bench.pauses}" in said


@pytest.mark.night
@pytest.mark.parametrize("right", OWN, ids=str)
def test_without_a_right_the_service_says_which_and_goes_on_once_it_has_it(
    secure: SecureCluster, bench: Bench, right: Right
) -> None:
    grant(secure, bench, [one for one in SERVICE if one != right])
    make_topics(bench)
    target = bench.target("one")
    bench.send(bench.to(target, 0), value=b"waits")
    service = bench.start()
    (own,) = named(bench, [right])
    topic = bench.any if own.name.endswith("*") else own.name
    usual = f"give the service {right.operation} on {topic}"
    expected = TOLD_OTHERWISE.get(right, usual).format(**vars(bench))
    await_true(lambda: expected in told(bench), expected)
    assert bench.read_all(target) == []
    grant(secure, bench, [right])
    assert [one.value for one in bench.read(target, 1)] == [b"waits"]
    assert "Traceback" not in told(bench)
    losses = ("ownership_lost", "slice_interrupted", "take_over_failed", "writer_not_opened")
    assert sum(len(service.events(event)) for event in losses) < 20


@pytest.mark.night
@pytest.mark.parametrize("right", CREATES, ids=str)
def test_without_a_right_to_make_topics_the_service_says_which_topic(
    secure: SecureCluster, bench: Bench, right: Right
) -> None:
    grant(secure, bench, [one for one in [*SERVICE, *CREATES] if one != right])
    bench.start("topics.create=true")
    (name,) = {one.name.removesuffix("*") for one in named(bench, [right])}
    await_true(lambda: f"topic {name} can't be created" in told(bench), "making fails")
    assert "uthorization failed" in told(bench)


@pytest.mark.parametrize("has_describe", [False, True])
def test_records_for_a_forbidden_target_are_dead_letters_and_the_others_go_on(
    secure: SecureCluster, bench: Bench, *, has_describe: bool
) -> None:
    grant(secure, bench, [one for one in SERVICE if one != TARGET_WRITE])
    make_topics(bench)
    open_target, closed = bench.target("open"), bench.target("closed")
    secure.grant(user(bench), [Right("topic", open_target, "Write")])
    if has_describe:
        secure.grant(user(bench), [Right("topic", closed, "Describe")])
    bench.serve()
    for number in range(20):
        bench.send_later(bench.to(closed, 0), value=b"closed %d" % number)
        bench.send_later(bench.to(open_target, 0), value=b"open %d" % number)
    bench.producer.flush()
    assert len(bench.read(open_target, 20)) == 20
    letters = bench.await_match(
        bench.dead_letter, lambda one: one.header("delay-error") == "target-unauthorized", 20
    )
    assert len({one.value for one in letters}) == 20
    assert f"may not write to {closed}" in (letters[0].header("delay-error-detail") or "")
    assert bench.read_all(closed) == []


def test_a_right_that_is_taken_away_while_records_are_delivered(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, [one for one in SERVICE if one != TARGET_WRITE])
    make_topics(bench)
    kept, taken = bench.target("kept"), bench.target("taken")
    secure.grant(user(bench), [Right("topic", name, "Write") for name in (kept, taken)])
    service = bench.serve()
    bench.send(bench.to(taken, 0), value=b"before")
    bench.read(taken, 1)
    secure.revoke(user(bench))
    grant(secure, bench, [one for one in SERVICE if one != TARGET_WRITE])
    secure.grant(user(bench), [Right("topic", kept, "Write")])
    bench.send(bench.to(taken, 0), value=b"after")
    bench.send(bench.to(kept, 0), value=b"beside")
    assert dead_letter(bench, b"after").header("delay-error") == "target-unauthorized"
    assert [one.value for one in bench.read(kept, 1)] == [b"beside"]
    assert [one.value for one in bench.read_all(taken)] == [b"before"]
    assert service.events("loop_failed") == []


def test_a_cancel_waits_while_outcomes_cannot_be_written(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, SERVICE)
    make_topics(bench)
    target = bench.target("forbidden")
    service = bench.serve("delivery.roll_window_ms=60000")  # a copy would lie behind the cancel
    bench.send(bench.to(target, 3_000), value=b"due")
    bench.send(bench.to(target, 600_000, ("delay-id", "x")), value=b"far")
    bench.send(bench.to(target, 0), value=b"before")
    bench.read(target, 1)
    secure.revoke(user(bench))
    grant(secure, bench, [one for one in SERVICE if one.name != "delay_outcomes"])
    bench.send([("delay-id", "x"), ("delay-op", "cancel")], value=None)
    bench.send(bench.to(target, 0), value=b"behind")
    bench.await_match(target, lambda one: one.value == b"due")
    await_true(
        lambda: any(
            f"give the service Write on {bench.outcomes}" in problem
            for problem in bench.status(service)["problems"]
        ),
        "the reason is shown",
    )
    assert [one.value for one in bench.read_all(target)] == [b"before", b"due"]
    grant(secure, bench, SERVICE)
    bench.await_match(target, lambda one: one.value == b"behind")
    told = bench.read(bench.outcomes, 2)
    assert [one.header("delay-outcome") for one in told] == ["cancelled", "cancelled"]
    assert service.events("loop_failed") == []


def test_a_missing_right_to_describe_target_configs_is_reported(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, [one for one in SERVICE if one != TARGET_CONFIGS])
    make_topics(bench)
    tight = bench.target("tight", max_message_bytes="2000")
    service = bench.serve()
    bench.send_later(bench.to(tight, 0), value=b"x" * 3_000)
    bench.send_later(bench.to(tight, 0), value=b"small")
    bench.producer.flush()
    assert dead_letter(bench, b"x" * 3_000).header("delay-error") == "too-large"
    assert [one.value for one in bench.read(tight, 1)] == [b"small"]
    assert [event["topic"] for event in service.events("topic_config_not_read")] == [tight]


def test_each_delay_topic_has_a_list_of_targets_of_its_own(
    secure: SecureCluster, bench: Bench
) -> None:
    grant(secure, bench, SERVICE)
    make_topics(bench)
    other = bench.topic(f"{bench.any}_other", 1, **FIT)
    red, blue = bench.target("red"), bench.target("blue")
    bench.serve(f"targets.{bench.any}.allow={red}", f"targets.{other}.allow={blue}")
    for topic in (bench.any, other):
        for target in (red, blue):
            value = f"{topic} to {target}".encode()
            bench.send(bench.to(target, 0), topic=topic, value=value)
    letters = bench.await_match(
        bench.dead_letter, lambda one: one.header("delay-error") == "target-denied", 2
    )
    denied = {f"{bench.any} to {blue}".encode(), f"{other} to {red}".encode()}
    assert {one.value for one in letters} == denied
    assert [one.value for one in bench.read(red, 1)] == [f"{bench.any} to {red}".encode()]
    assert [one.value for one in bench.read(blue, 1)] == [f"{other} to {blue}".encode()]


# --- users ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_producer_needs_write_on_the_delay_topic_only(
    secure: SecureCluster, bench: Bench, *, idempotent: bool
) -> None:
    make_topics(bench)
    who = f"producer-{bench.run}"
    secure.add_user(who)
    options = {"enable.idempotence": idempotent, "message.timeout.ms": 10_000, "log_level": 0}

    def written() -> list[KafkaError | None]:
        errors: list[KafkaError | None] = []
        producer = Producer({**secure.client(who), **options})
        producer.produce(bench.any, b"v", on_delivery=lambda error, _: errors.append(error))
        producer.flush(15)
        return errors

    refused = written()[0]
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    grant(secure, bench, PRODUCER, who)
    assert written() == [None]
    with pytest.raises(AssertionError, match="uthorization"):
        read_as(secure, who, bench.any)


def test_a_consumer_needs_read_on_its_target_and_its_group(
    secure: SecureCluster, bench: Bench
) -> None:
    target = bench.target("consumed")
    bench.send([], topic=target, value=b"delivered")
    who = f"consumer-{bench.run}"
    secure.add_user(who)
    grant(secure, bench, CONSUMER, who)
    assert read_as(secure, who, target) == b"delivered"


def read_as(secure: SecureCluster, who: str, topic: str) -> bytes | None:
    consumer = Consumer(
        {
            **secure.client(who),
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    found: list[Message] = []

    def has_polled() -> bool:
        message = consumer.poll(1)
        found.extend([] if message is None else [message])
        return bool(found)

    try:
        consumer.subscribe([topic])
        await_true(has_polled, f"a record of {topic}, or an error", 60)
        assert found[0].error() is None, found[0].error()
        return found[0].value()
    finally:
        consumer.close()


def test_a_dead_letter_operator_is_told_which_rights_are_missing(
    secure: SecureCluster, bench: Bench
) -> None:
    make_topics(bench)
    headers: list[Header] = [
        ("delay-error", b"time-missing"),
        ("delay-source", f"{bench.any}:0:0"),
        ("delay-settles", b"0"),
    ]
    bench.send(headers, topic=bench.dead_letter, value=b"again")
    who = f"operator-{bench.run}"
    secure.add_user(who)
    sets = as_sets([*bench.settings(), *secure.settings(who)])

    def dlq(*arguments: str) -> dict[str, Any]:
        done = command("dlq", *arguments, "--json", *sets)
        assert done.returncode == 0, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    assert "it may not be described" in command("dlq", "list", *sets).stderr.replace("\n", " ")
    secure.grant(who, [Right("topic", bench.dead_letter, "Describe")])
    assert "Read on it is missing" in command("dlq", "list", *sets).stderr.replace("\n", " ")
    reads = [right for right in OPERATOR if right.operation == "Read"]
    grant(secure, bench, reads, who)
    assert dlq("list")["code"] == "time-missing"
    failed = command("dlq", "replay", "--yes", *sets)
    assert failed.returncode == 1
    assert f"tx-{bench.run}-dlq-replay" in failed.stderr
    for right in OPERATOR:
        if right not in reads:
            failed = command("dlq", "replay", "--yes", *sets)
            assert bench.read_all(bench.any) == [], right
            grant(secure, bench, [right], who)
    assert dlq("replay", "--yes")["replayed"] == 1
    assert [one.value for one in bench.read_all(bench.any)] == [b"again"]


# --- TLS and passwords ---------------------------------------------------------------------------


def test_a_certificate_for_another_name_is_refused(secure: SecureCluster, bench: Bench) -> None:
    elsewhere = secure.client(user(bench))
    elsewhere["bootstrap.servers"] = secure.secure_bootstrap.replace("localhost", "127.0.0.1")
    errors: list[str] = []
    producer = Producer(
        {**elsewhere, "log_level": 0, "error_cb": lambda error: errors.append(error.str())}
    )
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=5)
    producer.poll(0)
    assert any("certificate verify failed" in error for error in errors), errors


def test_a_wrong_password_is_said_and_waited_out_and_shown_nowhere(
    secure: SecureCluster, bench: Bench
) -> None:
    make_topics(bench)
    wrong = secure.settings(user(bench), WRONG)
    service = bench.start(*wrong, "log.level=debug")
    await_true(lambda: service.events("waiting_for_kafka"), "the service waits for Kafka")
    await_true(lambda: "invalid credentials" in told(bench), "why is said")
    assert service.stop() == 0
    sets = as_sets([*bench.settings(), *wrong])
    done = command("send", "x", "--topic", bench.any, "--after", "1s", *sets)
    assert done.returncode == 1
    assert "invalid credentials" in done.stderr.replace("\n", " ")
    for text in (told(bench), done.stdout, done.stderr):
        assert WRONG not in text


def test_no_secret_is_in_any_output_at_debug_level(secure: SecureCluster, bench: Bench) -> None:
    grant(secure, bench, SERVICE)
    make_topics(bench)
    target = bench.target("debug")
    more = ["log.level=debug", "kafka.client.debug=security,broker"]
    service = bench.serve(*more)
    bench.send(bench.to(target, 0), value=b"v")
    bench.send([("delay-target-topic", target)], value=b"no time")
    bench.send(bench.to(bench.target_name("missing"), 0), value=b"no target")
    bench.read(target, 1)
    letters = bench.await_match(bench.dead_letter, lambda one: one.header("delay-error"), 2)
    address = service.events("metrics_served")[-1]["url"]
    seen = [repr(letter.headers) for letter in letters]
    for path in ("metrics", "status"):
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            seen.append(answer.read().decode())
    secure.revoke(user(bench))  # errors have words of their own
    bench.send(bench.to(target, 0), value=b"never")
    await_true(lambda: "uthorization failed" in told(bench), "the service meets an error")
    service.stop()
    sets = as_sets(bench.settings(*more))
    for arguments in (
        ["config", "show"],
        ["config", "show", "--json"],
        ["dlq", "list"],
        ["dlq", "list", "--debug"],
    ):
        done = command(*arguments, *sets)
        seen += [done.stdout, done.stderr]
    seen.append(told(bench))
    secrets = (PASSWORD, "only-for-tests-0123456789")
    assert not [secret for secret in secrets if any(secret in text for text in seen)]
    assert sum(map(len, seen)) > 10_000


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["wheel", "rocksdb"])
def test_state_folders_are_readable_by_their_user_only(
    secure: SecureCluster, bench: Bench, store: str
) -> None:
    grant(secure, bench, SERVICE)
    make_topics(bench)
    target = bench.target("files")
    before = os.umask(0)
    try:
        service = bench.serve(f"node.store={store}", f"node.state_dir={bench.folder / 'kept'}")
    finally:
        os.umask(before)
    bench.send(bench.to(target, 1_000, ("delay-id", "x")), value=b"kept for a second")
    bench.read(target, 1)
    assert service.stop() == 0
    kept = bench.folder / "kept"
    folders = [kept, *(path for path in kept.rglob("*") if path.is_dir())]
    assert len(folders) > 2
    open_ones = [path for path in folders if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_ones == []
