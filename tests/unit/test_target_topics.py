"""Targets as they are known without waiting for the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # its stubs don't re-export

from connectors.kafka import targets as module
from connectors.kafka.target_limits import ALONE_MAX, SEARCHED_MAX, TargetLimits, compresses
from connectors.kafka.targets import TargetTopics
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.codes import (
    TARGET_ASKED,
    TARGET_DOWN,
    TARGET_LATER,
    TARGET_PAUSED,
    TARGET_REFUSED,
    TARGET_UNAUTHORIZED,
    TARGET_UNKNOWN,
    TOO_LARGE,
)
from delayservice.engine.outcome import DELIVERED, Output

ORDERS = ("orders", -1)


class Cluster:
    """An admin client that knows what a test lets there be."""

    def __init__(self) -> None:
        self.in_sync: dict[str, list[int]] = {}
        """By topic: copies in sync of each partition, of three; 0: no leader."""
        self.forbidden: set[str] = set()
        self.settings: dict[str, dict[str, str]] = {}
        """By topic."""
        self.asked: Counter[str] = Counter()
        self.is_silent = False
        self.before_settings: Callable[[], None] = lambda: None

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        names: Collection[str] = topics.topic_names
        self.asked.update(names)
        return {name: self._described(name) for name in names}

    def _described(self, name: str) -> Future[Any]:
        if self.is_silent:
            return answered(KafkaError(KafkaError._TIMED_OUT))
        if name not in self.in_sync:
            return answered(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        allowed = [AclOperation.READ, AclOperation.WRITE]
        partitions = [
            SimpleNamespace(
                id=number,
                leader=SimpleNamespace(id=number) if count else None,
                isr=[0] * count,
                replicas=[0] * 3,
            )
            for number, count in enumerate(self.in_sync[name])
        ]
        operations = allowed[:1] if name in self.forbidden else allowed
        return answered(
            SimpleNamespace(
                topic_id=f"id of {name}", authorized_operations=operations, partitions=partitions
            )
        )

    def describe_configs(self, resources: list[Any]) -> dict[Any, Future[Any]]:
        self.before_settings()
        return {resource: self._settings(resource.name) for resource in resources}

    def _settings(self, name: str) -> Future[Any]:
        values = {"min.insync.replicas": "1"} | self.settings.get(name, {})
        return answered({n: SimpleNamespace(value=value) for n, value in values.items()})


def answered(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(answer)
    return future


class Stage:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.now_s = 1_000.0
        self.paused: dict[str, str] = {}
        self.silent: set[int] = set()
        self.targets = TargetTopics(
            cast("AdminClient", self.cluster),
            lambda: self.now_s,
            self.paused.get,
            silent=lambda: self.silent,
            own=("outcomes",),
            is_delay_topic=lambda topic: topic == "delay_topic_any",
        )

    def code(self, topic: str = "orders", partition: int = -1) -> str | None:
        obstacle = self.targets.obstacle((topic, partition))
        return None if obstacle is None else obstacle[0]

    def known(self, **topics: list[int]) -> None:
        """Let topics be there, and be known."""
        self.cluster.in_sync |= topics
        self.targets.expect([(topic, -1) for topic in topics])
        self.targets.look_up()


def test_an_unknown_target_is_looked_up_and_then_known() -> None:
    stage = Stage()
    stage.cluster.in_sync["orders"] = [3]
    assert stage.code() == TARGET_ASKED
    assert stage.cluster.asked == {}, "never by the one who wants to know"
    stage.targets.look_up()
    for _ in range(5):
        assert stage.code() is None
        assert stage.targets.writable == {ORDERS}
        stage.now_s += 60
        stage.targets.expect([ORDERS])
        stage.targets.look_up()
    assert stage.cluster.asked == {"orders": 1}, "a good one is not asked for again"


def test_nothing_is_sent_to_a_partition_whose_leader_does_not_answer_this_node() -> None:
    stage = Stage()
    stage.known(orders=[3, 3])
    assert stage.code() is None
    stage.silent = {1}
    stage.targets.changed()
    stage.now_s += 1  # it may have another leader by now, so it is asked
    assert stage.code() == TARGET_ASKED
    stage.targets.look_up()
    assert stage.code() == TARGET_DOWN, "by key, the record may go to any"
    assert stage.code(partition=1) == TARGET_DOWN
    assert stage.code(partition=0) is None
    stage.silent = set()
    assert stage.code() is None


def test_a_record_waits_for_an_answer_for_half_a_second_and_is_parked_then() -> None:
    stage = Stage()
    stage.cluster.is_silent = True
    assert stage.code() == TARGET_ASKED
    stage.now_s += 0.4
    stage.targets.look_up()
    assert stage.code() == TARGET_ASKED
    stage.now_s += 0.2
    assert stage.code() == TARGET_DOWN, "nobody has said that it does not exist"
    stage.cluster.is_silent = False
    stage.cluster.in_sync["orders"] = [3]
    stage.targets.look_up()
    assert stage.code() is None


TWO_IN_SYNC = {"min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("in_sync", "settings", "partition", "code"),
    [
        ([3, 3], {}, -1, None),
        ([3, 3], {}, 1, None),
        ([3, 3], {}, 2, TARGET_UNKNOWN),
        ([3, 3], {}, 99, TARGET_UNKNOWN),
        ([0], {}, -1, None),  # an election is waited for
        ([1], {}, -1, None),
        # What such a partition is part of can be neither committed nor aborted.
        ([1], TWO_IN_SYNC, -1, TARGET_DOWN),
        ([2], TWO_IN_SYNC, -1, None),
    ],
)
def test_a_target_is_judged_by_its_partitions_and_their_copies(
    in_sync: list[int], settings: dict[str, str], partition: int, code: str | None
) -> None:
    stage = Stage()
    stage.cluster.settings["orders"] = settings
    stage.known(orders=in_sync)
    assert stage.code("orders", partition) == code
    assert bool(stage.targets.writable) == (code is None)


def test_a_topic_that_may_not_be_written_to_is_told_from_one_that_is_not_there() -> None:
    stage = Stage()
    stage.cluster.forbidden.add("mails")
    stage.known(mails=[3])
    stage.targets.expect([ORDERS])
    stage.targets.look_up()
    assert stage.code("mails") == TARGET_UNAUTHORIZED
    assert stage.code("orders") == TARGET_UNKNOWN


@pytest.mark.parametrize("place", ["outcomes", "delay_topic_any:1"])
def test_an_own_topic_that_takes_nothing_is_a_problem_while_it_is_wanted(place: str) -> None:
    stage = Stage()
    stage.cluster.forbidden.add("mails")
    stage.known(outcomes=[3, 3], mails=[3], delay_topic_any=[3, 3])
    stage.silent = {1}
    stage.now_s += 1
    topic, _, partition = place.partition(":")
    for _ in range(2):
        assert stage.targets.problems() == [], "no record has wanted it, or knows why"
        stage.code("mails")
        stage.code(topic, int(partition or -1))
        stage.targets.look_up()
    assert stage.code(topic, int(partition or -1)) == TARGET_DOWN
    (told,) = stage.targets.problems()
    assert told.startswith(f"{place} can't be written to")
    assert "do not answer" in told
    stage.now_s += 5
    assert stage.targets.problems() == []


def test_a_topic_of_the_service_that_refuses_even_what_has_no_content_is_a_problem() -> None:
    stage = Stage()
    stage.cluster.settings["outcomes"] = {"max.message.bytes": "60"}
    stage.known(outcomes=[3])
    assert stage.targets.refusal("outcomes", b"key", b"with content", []) is not None
    assert stage.targets.problems() == [], "it is tried without"
    assert stage.targets.refusal("outcomes", b"key", None, []) is not None
    (told,) = stage.targets.problems()
    assert "max.message.bytes of outcomes is 60" in told


def test_a_bad_target_is_looked_up_again_after_a_quarter_second() -> None:
    stage = Stage()
    assert stage.code() == TARGET_ASKED
    stage.targets.look_up()
    for _ in range(5):
        assert stage.code() == TARGET_UNKNOWN
        stage.targets.look_up()
    assert stage.cluster.asked == {"orders": 1}
    stage.now_s += 0.24
    stage.code()
    stage.targets.look_up()
    assert stage.cluster.asked == {"orders": 1}
    stage.now_s += 0.01
    stage.cluster.in_sync["orders"] = [3]
    assert stage.code() == TARGET_ASKED, "it may have been made since"
    stage.targets.look_up()
    assert stage.cluster.asked == {"orders": 2}
    assert stage.code() is None


def test_a_bad_target_is_judged_by_the_awaited_answer() -> None:
    stage = Stage()
    assert stage.code() == TARGET_ASKED
    stage.now_s += 0.1
    stage.targets.look_up()
    stage.now_s += 60
    assert stage.code() == TARGET_UNKNOWN
    assert stage.code() == TARGET_ASKED, "the next one wants a new answer"


def test_one_record_waits_for_a_cluster_that_is_silent_and_the_next_ones_do_not() -> None:
    stage = Stage()
    stage.targets.expect([ORDERS])
    stage.targets.look_up()
    stage.now_s += 60
    stage.cluster.is_silent = True
    assert stage.code() == TARGET_ASKED
    stage.now_s += 0.6
    for _ in range(3):
        stage.targets.look_up()
        assert stage.code() == TARGET_DOWN, "it may have been made since"
        stage.now_s += 1


def test_an_answer_says_nothing_of_a_topic_that_was_made_while_settings_were_read() -> None:
    stage = Stage()
    stage.cluster.in_sync["other"] = [3]

    def meanwhile() -> None:
        stage.now_s += 0.3
        assert stage.code() == TARGET_ASKED

    stage.cluster.before_settings = meanwhile
    stage.targets.expect([ORDERS, ("other", -1)])
    stage.targets.look_up()
    for _ in range(3):
        assert stage.code() == TARGET_DOWN, "no other record waits for a newer answer"


def test_the_log_says_once_that_a_target_is_bad_and_again_when_it_was_good_between() -> None:
    stage = Stage()

    def told() -> list[str]:
        with structlog.testing.capture_logs() as logs:
            stage.now_s += 1
            for _ in range(3):
                stage.code()
                stage.targets.look_up()
        return [str(one["target"]) for one in logs if one["event"] == "target_blocked"]

    assert told() == ["orders:-1"]
    assert told() == []
    stage.cluster.in_sync["orders"] = [3]
    assert told() == []
    assert stage.code() is None
    del stage.cluster.in_sync["orders"]
    stage.targets.forget("orders")
    assert told() == ["orders:-1"]


def test_an_answer_that_the_broker_contradicts_is_looked_up_again() -> None:
    stage = Stage()
    stage.known(orders=[3])
    assert stage.code() is None
    del stage.cluster.in_sync["orders"]
    stage.targets.forget("orders")
    assert stage.targets.writable == set()
    assert stage.code() == TARGET_ASKED
    stage.targets.look_up()
    assert stage.code() == TARGET_UNKNOWN


def test_a_pause_holds_at_once_and_judges_all_targets_again() -> None:
    stage = Stage()
    stage.known(orders=[3], mails=[3])
    assert [stage.code(), stage.code("mails")] == [None, None]
    stage.paused["orders"] = "somebody said so"
    stage.targets.changed()
    assert stage.targets.writable == set()
    assert stage.targets.obstacle(ORDERS) == (TARGET_PAUSED, "somebody said so")
    assert stage.code("mails") is None
    assert stage.targets.writable == {("mails", -1)}
    stage.paused.clear()
    stage.targets.changed()
    assert stage.code() is None


def test_a_change_between_the_judgement_and_its_noting_is_not_overlooked() -> None:
    stage = Stage()
    stage.known(orders=[3])
    judge = stage.targets._judge

    def changes_meanwhile(target: tuple[str, int]) -> tuple[str, str] | None:
        found = judge(target)
        stage.targets.changed()
        return found

    stage.targets._judge = changes_meanwhile  # type: ignore[method-assign]
    assert stage.code() is None
    assert stage.targets.writable == set()


def test_a_partition_that_did_not_acknowledge_is_given_up_for_a_second() -> None:
    stage = Stage()
    stage.known(orders=[3, 3], mails=[3])
    assert stage.code("orders", 0) is None
    stage.targets.give_up([], "is slow")
    assert stage.targets.writable, "nothing has changed"
    stage.targets.give_up([("orders", 0)], "is slow")
    assert stage.targets.writable == set()
    assert stage.code("orders", 0) == TARGET_DOWN
    assert stage.code("orders", -1) == TARGET_DOWN, "the client could choose the same"
    assert stage.code("orders", 1) is None
    assert stage.code("mails") is None
    stage.now_s += 0.9
    assert stage.code("orders", 0) == TARGET_DOWN
    stage.now_s += 0.2
    assert stage.code("orders", 0) is None
    assert stage.code("orders", -1) is None


def test_without_a_leader_a_target_is_unserved_until_there_is_one() -> None:
    stage = Stage()
    stage.known(orders=[3, 3])
    assert stage.targets.unserved([ORDERS]) == {}
    stage.cluster.in_sync["orders"] = [3, 0]
    stage.now_s += 1
    assert stage.targets.unserved([ORDERS])[ORDERS][0] == TARGET_DOWN
    assert stage.code("orders", 1) == TARGET_DOWN
    assert stage.code("orders", 0) is None
    stage.cluster.in_sync["orders"] = [3, 3]
    stage.now_s += 1
    assert stage.code("orders", 1) == TARGET_ASKED
    stage.targets.look_up()
    assert stage.code("orders", 1) is None


def test_while_a_transaction_waits_the_cluster_is_asked_four_times_a_second_at_most() -> None:
    stage = Stage()
    stage.known(orders=[3])
    for _ in range(100):
        stage.now_s += 0.01
        stage.targets.unserved([ORDERS])
    assert 4 <= stage.cluster.asked["orders"] <= 6
    stage.cluster.is_silent = True
    stage.now_s += 1
    with pytest.raises(KafkaEdgeError):
        stage.targets.unserved([ORDERS])


def test_the_number_of_remembered_targets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 100)
    stage = Stage()
    for number in range(1_000):
        stage.now_s += 0.001
        topic = f"t{number}"
        stage.cluster.in_sync[topic] = [0]
        stage.targets.expect([(topic, -1)])
        stage.targets.look_up()
        stage.targets.unserved([(topic, -1)])
        stage.code(topic)
    targets = stage.targets
    kept = (targets._known, targets.writable, targets._awaited_s)
    more = (targets._log._blocked, targets.limits._terms)
    assert [len(one) <= 100 for one in (*kept, *more)] == [True] * 5
    assert f"t{999}" in targets._known
    assert stage.code("t0") == TARGET_ASKED, "forgotten, and asked for again"


def test_the_number_of_open_lookups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 100)
    stage = Stage()
    stage.cluster.is_silent = True
    for number in range(1_000):
        stage.code(f"t{number}")
    stage.targets.look_up()
    assert len(stage.targets._sought) <= 100
    assert stage.code("beyond") == TARGET_DOWN, "parked at once: there is no room to ask for it"


def test_many_are_looked_up_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASKED_MAX", 10)
    stage = Stage()
    stage.cluster.in_sync = {f"t{number}": [3] for number in range(25)}
    stage.targets.expect([(f"t{number}", -1) for number in range(25)])
    for asked in (10, 20, 25):
        stage.targets.look_up()
        assert len(stage.cluster.asked) == asked
        assert stage.targets._wake.is_set()


def test_missing_targets_do_not_displace_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 100)
    stage = Stage()
    stage.known(orders=[3])
    assert stage.code() is None
    for number in range(1_000):
        stage.now_s += 0.01
        stage.code(f"never{number}")
        stage.targets.look_up()
        assert stage.targets.writable == {ORDERS}
    stage.targets.changed()
    assert stage.code() is None, "judged anew, and still known"
    assert stage.cluster.asked["orders"] == 1


def test_shards_wait_for_a_few_unknown_targets_a_second_and_put_the_others_off() -> None:
    stage = Stage()
    stage.cluster.is_silent = True
    codes = [stage.code(f"t{number}") for number in range(25)]
    assert codes == [TARGET_ASKED] * 20 + [TARGET_LATER] * 5
    assert stage.code("t3") == TARGET_ASKED, "what is waited for already"
    stage.now_s += 1.1
    assert stage.code("beyond") == TARGET_ASKED


def test_the_log_names_some_of_very_many_bad_targets() -> None:
    stage = Stage()
    with structlog.testing.capture_logs() as logs:
        for number in range(1_000):
            stage.now_s += 0.01
            stage.targets.expect([(f"t{number}", -1)])
            stage.targets.look_up()
            stage.code(f"t{number}")
    told = [one for one in logs if one["event"] == "target_blocked"]
    assert 20 <= len(told) <= 31
    assert sum(int(one["others_before"]) + 1 for one in told) > 800


# --- what a topic takes --------------------------------------------------------------------------


def taking(**settings: str) -> Stage:
    """A target with these settings, and one with none of its own."""
    stage = Stage()
    stage.cluster.settings["orders"] = {n.replace("_", "."): v for n, v in settings.items()}
    stage.known(orders=[3], mails=[3])
    assert [stage.code(), stage.code("mails")] == [None, None]
    return stage


def why_not(stage: Stage, size: int, topic: str = "orders", key: bytes | None = b"k") -> str | None:
    """The code by which a record of about this size is refused; None: it is taken."""
    found = stage.targets.refusal(topic, key, b"x" * size, [])
    return None if found is None else found[0]


def output_of(size: int) -> Output:
    return (DELIVERED, "orders", -1, b"k", b"x" * size, [], 0, 7)


def test_of_one_transaction_a_topic_that_takes_little_gets_one_batch() -> None:
    stage = taking(max_message_bytes="1000")
    assert stage.targets.writable == {("mails", -1)}
    stage.targets.reserve([output_of(400)])
    assert why_not(stage, 400) is None
    stage.targets.reserve([output_of(400)])
    assert why_not(stage, 400) == TARGET_LATER
    assert why_not(stage, 400, "mails") is None
    stage.targets.limits.end_transaction()
    assert why_not(stage, 400) is None


def fill(stage: Stage, count: int = 1_000) -> int:
    """Stage records while the topic takes them, and commit; return their number."""
    taken = 0
    while taken < count and stage.code() is None:
        stage.targets.reserve([output_of(10)])
        assert stage.targets.limits.begins_batch(output_of(10)) == (taken > 0)
        taken += 1
    stage.targets.limits.committed(["orders"])
    stage.targets.limits.end_transaction()
    return taken


def test_few_records_are_sent_alone_while_a_bad_one_is_searched() -> None:
    stage = taking()
    for is_found, last in ((False, 1), (True, ALONE_MAX)):
        stage.targets.suspect("orders", is_found=False)
        assert [fill(stage) for _ in range(5)] == [ALONE_MAX] * 5
        stage.targets.suspect("orders", is_found=is_found)
        assert "orders" in stage.targets.small
        assert fill(stage, last) == last
        assert "orders" not in stage.targets.small
    searched = 0
    stage.targets.suspect("orders", is_found=False)
    while "orders" in stage.targets.small:
        searched += fill(stage)
    assert searched == SEARCHED_MAX, "it is not sought for ever"


def test_records_that_are_judged_and_not_sent_take_no_room() -> None:
    stage = taking(max_message_bytes="1000")
    assert [why_not(stage, 600) for _ in range(9)] == [None] * 9


def test_outputs_above_the_batch_limit_are_sent_in_several_batches() -> None:
    stage = taking(max_message_bytes="1000")
    told = [output_of(400)] * 5
    assert [why_not(stage, 400) for _ in told] == [None] * 5
    stage.targets.reserve(told)
    begins = [stage.targets.limits.begins_batch(output) for output in told]
    assert begins == [False, False, True, False, True]
    assert why_not(stage, 1) == TARGET_LATER


def test_a_record_that_its_topic_never_takes_is_refused_before_it_is_sent() -> None:
    stage = taking(max_message_bytes="1000", cleanup_policy="delete,compact")
    assert why_not(stage, 1_000) == TOO_LARGE
    assert why_not(stage, 900) is None, "and what was refused takes no room"
    assert why_not(stage, 1, key=None) == TARGET_REFUSED
    assert why_not(stage, 1, key=b"") is None


def test_a_limit_that_is_raised_holds_after_a_few_seconds() -> None:
    stage = taking(max_message_bytes="1000")
    stage.cluster.settings["orders"]["max.message.bytes"] = "2000000"
    stage.code()
    stage.targets.look_up()
    assert why_not(stage, 1_500) == TOO_LARGE
    stage.now_s += 5
    assert stage.code() is None, "nobody waits"
    stage.targets.look_up()
    assert why_not(stage, 1_500) is None
    assert stage.code() is None
    assert ORDERS in stage.targets.writable


def test_a_refused_target_is_judged_by_its_new_settings() -> None:
    stage = taking()
    stage.cluster.settings["orders"]["max.message.bytes"] = "1000"
    assert why_not(stage, 1_500) is None
    stage.targets.forget("orders")
    assert stage.code() == TARGET_ASKED
    stage.targets.look_up()
    assert stage.code() is None
    assert why_not(stage, 1_500) == TOO_LARGE


def test_of_a_client_that_compresses_no_size_is_known_before() -> None:
    terms = TargetLimits(compresses=True)
    terms.learn("orders", {"max.message.bytes": "1000"})
    assert terms.refusal("orders", b"k", b"x" * 5_000, []) is None
    assert compresses({"compression.type": "lz4"})
    assert not compresses({"compression.type": "none"})
