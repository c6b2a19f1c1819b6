"""Topics of the service's own that are deleted, or refuse what is written there: what waits, what
goes on, and that it can be seen. Each test has a shard that needs the topic and one that does not.
"""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from connectors.kafka.clients import admin_client
from connectors.kafka.topics import TopicKeeper
from delay_devtools.service import ServiceProcess
from delayservice.cli import app
from delayservice.config.settings import load
from tests.integration.bench import Bench, Header, Seen, aborts, await_true, benches

NEEDY, OTHER = 0, 1
"""Shards: one whose next record needs the topic, and one beside it."""
DUE = 10
"""Records of the needy shard that H has passed, and that come due while it waits."""
BESIDE = 50
TOPICS = pytest.mark.parametrize("which", ["letters", "outcomes"])


bench = benches(partitions=2, sets=("delivery.park_delays_ms=300,300", "node.workers=1"))


def name_of(bench: Bench, which: str) -> str:
    return bench.dead_letter if which == "letters" else bench.outcomes


def topics(bench: Bench, verb: str) -> Result:
    sets = [word for one in bench.settings() for word in ("--set", one)]
    return CliRunner().invoke(app, ["topics", verb, "--json", *sets])


def problems(bench: Bench, service: ServiceProcess) -> str:
    return " / ".join(bench.status(service)["problems"])


def delete(bench: Bench, topic: str) -> None:
    bench.admin.delete_topics([topic])[topic].result(30)
    await_true(lambda: bench.partitions_of(topic) == 0, "the topic is gone")


class Traffic:
    """What comes due before, at and behind the records that need the topic."""

    def __init__(self, bench: Bench, which: str) -> None:
        self.bench = bench
        self.gone = name_of(bench, which)
        self.target = bench.target("sound")
        self._needs: list[list[Header]] = [
            [("delay-op", "cancel"), ("delay-id", "far")],
            [("delay-op", "fire"), ("delay-id", "near")],
        ]
        if which == "letters":
            self._needs = [[("delay-after", "no time"), ("delay-target-topic", self.target)]]

    def before(self) -> None:
        """Records that H passes before the topic is gone."""
        to = self.bench.to
        for number in range(DUE):
            self._send(to(self.target, 3_000 + 100 * number), b"due %d" % number, NEEDY)
        self._send(to(self.target, 3_600_000, ("delay-id", "far")), b"far", NEEDY)
        self._send(to(self.target, 3_600_000, ("delay-id", "near")), b"near", NEEDY)
        self._send(to(self.target, 0), b"passed", NEEDY)
        self.bench.producer.flush()
        self.bench.await_match(self.target, lambda one: one.key == b"passed")

    def after(self) -> None:
        """What needs the topic, and records behind it and beside it."""
        for headers in self._needs:
            self.bench.send(headers, value=None, partition=NEEDY)
        self._send(self.bench.to(self.target, 0), b"behind", NEEDY)
        for number in range(BESIDE):
            self._send(self.bench.to(self.target, 50 * number), b"beside %d" % number, OTHER)
        self.bench.producer.flush()

    def _send(self, headers: list[Header], key: bytes, partition: int) -> None:
        self.bench.send_later(headers, key=key, partition=partition)

    def await_what_does_not_need_it(self) -> None:
        """All but what lies behind the records that wait."""

        def goes_on(one: Seen) -> bool:
            return (one.key or b"").startswith((b"due", b"beside"))

        self.bench.await_match(self.target, goes_on, DUE + BESIDE)

    def await_all(self) -> None:
        """Each record was settled once, and nothing was cancelled or fired twice."""
        self.bench.await_match(self.target, lambda one: one.key == b"behind")
        written = self.bench.read(self.gone, 1 if len(self._needs) == 1 else 3)
        keys = sorted(one.key or b"" for one in self.bench.read_all(self.target))
        due = [b"due %d" % number for number in range(DUE)]
        beside = [b"beside %d" % number for number in range(BESIDE)]
        if len(self._needs) == 1:
            assert [one.header("delay-error") for one in written] == ["time-invalid"]
            assert keys == sorted([*due, *beside, b"passed", b"behind"])
        else:
            told = sorted(one.header("delay-outcome") or "" for one in written)
            assert told == ["cancelled", "cancelled", "fired"]
            assert keys == sorted([*due, *beside, b"passed", b"behind", b"near"])


@TOPICS
def test_a_topic_of_the_service_that_is_deleted_is_made_again_and_reported(
    bench: Bench, which: str
) -> None:
    service = bench.serve()
    traffic = Traffic(bench, which)
    traffic.before()
    delete(bench, traffic.gone)
    traffic.after()
    traffic.await_what_does_not_need_it()
    await_true(lambda: bench.partitions_of(traffic.gone) == 1, "it is made again")
    traffic.await_all()
    made = f"{traffic.gone} had been deleted, and was made again"
    await_true(lambda: made in problems(bench, service), "it is reported")
    assert service.events("own_topics_at_risk")
    assert len(aborts(service)) <= 2, "at most one transaction finds out"
    assert service.events("ownership_lost") == []
    assert service.stop() == 0


def test_a_topic_that_the_asked_broker_does_not_know_yet_was_not_deleted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(None, bench.settings(), {})
    keeper = TopicKeeper(admin_client(settings.kafka.client_config("admin")), settings)
    keeper.prepare()
    known = keeper._list()
    stale = {n: b for n, b in known.items() if n not in (bench.dead_letter, bench.outcomes)}
    monkeypatch.setattr(keeper, "_list", lambda: stale)
    assert keeper.look(keeper.layout()).outlet_problems == ()


@TOPICS
def test_where_the_service_makes_no_topics_only_what_needs_the_missing_one_waits(
    bench: Bench, which: str
) -> None:
    assert topics(bench, "check").exit_code == 3
    made = json.loads(topics(bench, "create").stdout.splitlines()[-1])["created"]
    assert name_of(bench, which) in {one["topic"] for one in made}
    assert topics(bench, "check").exit_code == 0
    service = bench.start("topics.create=false", log="without.log")
    service.wait_serving(bench.partitions)
    traffic = Traffic(bench, which)
    traffic.before()
    delete(bench, traffic.gone)
    traffic.after()
    traffic.await_what_does_not_need_it()
    await_true(lambda: "shards that need it wait" in problems(bench, service), "it is reported")
    assert f"{traffic.gone} does not exist" in problems(bench, service)
    bench.grow(bench.any, 3)  # a slice that was never served is served all the same
    await_true(lambda: bench.partitions_of(bench.any) == 3, "the partition is known")
    bench.producer.list_topics(bench.any, timeout=10)  # so that the producer knows it, too
    bench.send(bench.to(traffic.target, 0), key=b"grown", partition=2)
    bench.await_match(traffic.target, lambda one: one.key == b"grown")
    assert b"behind" not in [one.key for one in bench.read_all(traffic.target)]
    assert len(aborts(service)) <= 2
    missing, *_ = json.loads(topics(bench, "check").stdout)["differences"]
    assert missing["why"].startswith(f"{traffic.gone} does not exist")
    assert traffic.gone in topics(bench, "create").stdout.splitlines()[-1]
    bench.await_match(traffic.target, lambda one: one.key == b"behind")
    await_true(lambda: bench.status(service)["healthy"], "all is well again")
    assert service.stop() == 0


@TOPICS
def test_an_own_topic_with_a_small_size_limit_aborts_nothing(bench: Bench, which: str) -> None:
    service = bench.serve()
    traffic = Traffic(bench, which)
    traffic.before()
    bench.alter(traffic.gone, max_message_bytes="60")
    traffic.after()
    traffic.await_what_does_not_need_it()
    await_true(lambda: "shards that need it wait" in problems(bench, service), "it is reported")
    assert f"max.message.bytes of {traffic.gone} is 60" in problems(bench, service)
    assert b"behind" not in [one.key for one in bench.read_all(traffic.target)]
    bench.alter(traffic.gone, max_message_bytes="2097152")
    traffic.await_all()
    assert len(aborts(service)) <= 2
    await_true(lambda: bench.status(service)["healthy"], "all is well again")
    assert service.stop() == 0
