"""The admin API of a real node: what it says is so, and what it is told to do is done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from delay_devtools.cluster import EmbeddedCluster
from delayservice.admin.changing import WAITING_MAX
from delayservice.cli import app
from delayservice.contract.partitioner import partition_for
from tests.integration.asked import TOKEN, Asked
from tests.integration.bench import Bench, Header, Place, await_true, now_ms
from tests.integration.fuzz_api import fuzz

pytestmark = pytest.mark.cluster

HOUR_MS = 3_600_000
PARTITIONS = 2
SETS = (f"admin.tokens.tester.token={TOKEN}", "delivery.held_ms=1000")


class Stand:
    """A node, its API and a target."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.target = bench.target("one")
        self.service = bench.serve(*SETS)
        self.api = Asked(self.service)

    def again(self) -> None:
        """Another life of the node."""
        self.api.close()
        self.service = self.bench.serve(*SETS)
        self.api = Asked(self.service)

    def waits(self, **named: str) -> bool:
        answer = self.api.raw("GET", "/v1/records", params=named)
        return answer.is_success and "due_ms" in answer.json()[0]

    def schedule(self, record_id: str, delay_ms: int, *, partition: int = 0) -> Place:
        headers = self.bench.to(self.target, delay_ms, ("delay-id", record_id.encode()))
        place = self.bench.send(headers, value=record_id.encode(), partition=partition)
        path = f"/v1/records/{self.bench.any}/{place[0]}/{place[1]}"
        await_true(lambda: self.api.get(path)["state"] != "unread", "the node has read it")
        return place


@pytest.fixture(scope="module")
def stand(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("admin")
    sets = ("delivery.id_partitions=0",)  # ids stay where a test writes them
    with Bench(cluster.bootstrap, folder, partitions=PARTITIONS, sets=sets) as bench:
        stand = Stand(bench)
        await_true(lambda: stand.api.raw("GET", "/readyz").status_code == 200, "it is ready")
        yield stand
        stand.api.close()


def test_pending_records_are_found_by_id_offset_and_due_range(stand: Stand) -> None:
    api = stand.api
    partition, offset, timestamp_ms = stand.schedule("found", HOUR_MS, partition=1)
    [by_id] = api.get("/v1/records", id="found")
    assert by_id["due_ms"] == timestamp_ms + HOUR_MS
    assert by_id["value"] == {"encoding": "utf-8", "data": "found"}
    assert (by_id["topic"], by_id["partition"], by_id["offset"]) == (
        stand.bench.any,
        partition,
        offset,
    )
    fate = api.get(f"/v1/records/{stand.bench.any}/{partition}/{offset}")
    assert fate["state"] == "pending"
    assert fate["pending"] == by_id
    due_ms = by_id["due_ms"]
    page = api.get("/v1/pending", **{"from": due_ms, "to": due_ms + 1})
    assert [one["source"] for one in page["records"]] == [by_id["source"]]
    assert page["next"] is None
    assert api.get("/v1/pending", **{"from": due_ms + 1, "to": due_ms + 2})["records"] == []
    assert stand.target in {one["target"] for one in api.get("/v1/pending")["records"]}
    assert api.get("/v1/pending", target="other*")["records"] == []


def test_records_beyond_the_roll_window_are_found_and_counted_by_due_time(
    stand: Stand,
) -> None:
    stand.schedule("far", 30 * HOUR_MS)
    [far] = stand.api.get("/v1/records", id="far")
    assert far["next_ms"] < far["due_ms"]
    asked = {"from": far["due_ms"], "to": far["due_ms"] + 1}
    assert [one["offset"] for one in stand.api.get("/v1/pending", **asked)["records"]] == [
        far["offset"]
    ]

    def beyond() -> int:
        return int(stand.api.get("/v1/pending/horizon")["beyond"])

    await_true(lambda: beyond() == 1, "the far one is counted beyond a day")


def test_a_cancel_a_fire_and_a_reschedule_say_what_they_did(stand: Stand) -> None:
    api, bench = stand.api, stand.bench
    for record_id in ("to cancel", "to fire", "to move"):
        stand.schedule(record_id, HOUR_MS)
    done = api.change("POST", "/v1/records/cancel", {"id": "to cancel"})
    assert done["outcome"] == "cancelled"
    assert api.change("POST", "/v1/records/cancel", {"id": "to cancel"})["outcome"] == "not_pending"
    assert api.change("POST", "/v1/records/fire", {"id": "to fire"})["outcome"] == "fired"
    path, far = "/v1/records/reschedule", {"id": "to move", "after_ms": 253_402_300_799_999}
    assert "nothing was written" in api.refused("POST", path, 409, json=far)
    moved = api.change("POST", path, {"id": "to move", "after_ms": 500})
    assert moved["outcome"] == "replaced"
    with bench.reader(stand.target) as reader:
        arrived = reader.await_match(lambda one: one.value in (b"to fire", b"to move"), 2)
    assert sorted(one.value or b"" for one in arrived) == [b"to fire", b"to move"]
    told = bench.await_match(bench.outcomes, lambda one: one.header("delay-id") == "to cancel", 3)
    assert {one.header("delay-outcome") for one in told} == {"cancelled", "not_pending"}
    written = bench.await_match(bench.any, lambda one: one.header("delay-by") is not None, 4)
    assert {one.header("delay-by") for one in written} == {"tester"}
    assert all(one.header("delay-by") is None for one in arrived)
    changes = [(one["by"], one["operation"]) for one in stand.service.events("change_written")]
    assert changes == [("tester", name) for name in ("cancel", "cancel", "fire", "reschedule")]


def test_all_that_match_are_changed_a_page_at_a_time(stand: Stand) -> None:
    api = stand.api
    for number in range(5):
        stand.schedule(f"bulk [{number}]", HOUR_MS, partition=number % PARTITIONS)
    assert len(api.get("/v1/pending", id="bulk [?]", target=stand.target)["records"]) == 5
    assert api.get("/v1/pending", id="bulk?")["records"] == []
    path, asked = "/v1/records/bulk", {"id": "bulk *", "operation": "cancel", "to": "now+2h"}
    counted = api.change("POST", path, asked | {"dry_run": True})
    assert (counted["matched"], counted["outcomes"]) == (5, {"changeable": 5})
    moved = asked | {"operation": "reschedule", "after_ms": HOUR_MS, "limit": 2, "slices": [0]}
    first = api.change("POST", path, moved)
    assert (first["matched"], first["outcomes"]) == (2, {"replaced": 2})
    assert "one of the two" in api.refused("POST", path, 400, json=moved | {"at_ms": "now"})
    outcomes: Counter[str] = Counter()
    while asked:
        done = api.change("POST", path, asked | {"limit": 2})
        outcomes.update(done["outcomes"])
        asked = done["next"] and asked | {"cursor": done["next"]}
    assert outcomes == {"cancelled": 5}
    assert api.get("/v1/pending", id="bulk *")["records"] == []


def test_a_command_changes_all_that_match_and_nothing_twice(stand: Stand) -> None:
    api, bench = stand.api, stand.bench
    target, paused = bench.target("many"), bench.target("many_paused")
    last: dict[int, Place] = {}
    for number in range(6):
        to = paused if number == 5 else target
        headers = bench.to(to, HOUR_MS, ("delay-id", f"many [{number}]"))
        place = bench.send(headers, partition=number % PARTITIONS)
        last[place[0]] = place
    bench.send(bench.to(target, HOUR_MS))
    every = bench.to(target, HOUR_MS, ("delay-cron", "@yearly"), ("delay-id", "recurs"))
    last[0] = bench.send(every)
    paths = [f"/v1/records/{bench.any}/{partition}/{at}" for partition, at, _ in last.values()]
    await_true(lambda: all(api.get(one)["state"] != "unread" for one in paths), "all are read")

    def change(*arguments: str) -> tuple[int, dict[str, int], dict[str, Any]]:
        result = api.command("record", *arguments, "--json")
        told = json.loads(result.stdout)
        return result.exit_code, told["outcomes"], told

    many = ("--id", "many [[]?]", "--target", f"{target}*")
    assert change("cancel", "--id", "many [?]", "--dry-run")[:2] == (0, {"changeable": 6})
    assert change("cancel", *many, "--dry-run")[:2] == (4, {}), "[ is no pattern"
    many = ("--id", "many *", "--target", f"{target}*")
    for nothing in (["--id", "["], ["--id", "", "--target", target], [*many, "--to", "now"]):
        assert change("cancel", *nothing, "--yes")[:2] == (4, {})
    code, outcomes, moved = change("reschedule", *many, "--after", "30h", "--yes")
    assert (code, outcomes) == (0, {"replaced": 6})
    again = change("reschedule", *many, "--at", str(moved["at_ms"]), "--yes")
    assert again[:2] == (0, {"unchanged": 6})
    fire = change("fire", "--id", "*", "--target", target, "--recurring", "--yes")
    assert fire[:2] == (0, {"refused": 1}), "its next occurrence would be fired, too"
    pause = f"/v1/pauses/target/{paused}"
    api.change("PUT", pause, {})
    assert change("fire", "--target", paused, "--yes")[:2] == (0, {"fired": 1}), "it is held"
    rolled_ms = max(api.get("/v1/records", id=f"many [{n}]")[0]["next_ms"] for n in range(5))
    first = change("cancel", *many, "--from", str(rolled_ms + 1), "--limit", "2", "--yes")
    assert first[:2] == (0, {"cancelled": 2})
    all_of_them = ("cancel", "--target", f"{target}*", "--yes")
    rest = Counter(change(*all_of_them, "--cursor", first[2]["cursor"])[1])
    # The record of the paused target is put off each second, also to before the cursor.
    assert rest + Counter(change(*all_of_them)[1]) == {"cancelled": 5, "no_id": 1}
    api.change("DELETE", pause)
    told = Counter(
        one.header("delay-id")
        for one in bench.read_all(bench.outcomes)
        if one.header("delay-outcome") == "cancelled" and one.header("delay-settled-by")
    )
    assert {told[f"many [{number}]"] for number in range(6)} == {1}


def test_a_reschedule_keeps_all_that_the_record_is_but_its_back_off(stand: Stand) -> None:
    bench = stand.bench
    more: list[Header] = [("delay-id", b"\xffwhole"), ("own", b"1"), ("own", b"\x00\xff")]
    headers = [("delay-backoff", "1h"), *bench.to(stand.target, HOUR_MS, *more)[1:]]
    bench.send(headers, key=b"\x00key", value=b"\xfe\xffvalue", partition=1)
    named = {"id": "/3dob2xl", "encoding": "base64"}
    await_true(lambda: stand.waits(**named), "it waits")
    asked = named | {"after_ms": 0}
    assert stand.api.change("POST", "/v1/records/reschedule", asked)["outcome"] == "replaced"
    with bench.reader(stand.target) as reader:
        [one] = reader.await_match(lambda one: one.value == b"\xfe\xffvalue")
    assert (one.key, one.header("delay-retries")) == (b"\x00key", None)
    assert [(n, v) for n, v in one.headers if n == "own"] == [("own", b"1"), ("own", b"\x00\xff")]


def test_a_paused_target_gets_nothing_and_loses_nothing(stand: Stand) -> None:
    bench, api = stand.bench, stand.api
    paused, other = bench.target("paused"), bench.target("other")
    api.change("PUT", f"/v1/pauses/target/{paused}", {"reason": "a test"})
    await_true(lambda: api.get("/v1/pauses"), "the pause is heard of")
    assert [(p["kind"], p["name"], p["reason"]) for p in api.get("/v1/pauses")] == [
        ("target", paused, "a test")
    ]
    for number in range(20):
        bench.send(bench.to(paused, 0), value=b"%d" % number, partition=number % PARTITIONS)
    bench.send(bench.to(other, 0), value=b"not held up")
    assert [one.value for one in bench.read(other, 1)] == [b"not held up"]
    stand.service.kill()
    stand.again()  # it hears of the pause before it delivers anything
    bench.send(bench.to(other, 2_500), value=b"much later")
    assert len(bench.read(other, 2)) == 2
    assert bench.read_all(paused) == []
    before_ms = now_ms()
    stand.api.change("DELETE", f"/v1/pauses/target/{paused}")
    arrived = bench.read(paused, 20)
    assert sorted(int(one.value or b"") for one in arrived) == list(range(20))
    assert all(one.header("delay-attempt") is None for one in arrived)
    assert min(one.timestamp_ms for one in arrived) > before_ms
    assert bench.read_all(bench.dead_letter) == []
    assert "is not paused" in stand.api.refused("DELETE", f"/v1/pauses/target/{paused}", 404)


def pause_all(stand: Stand) -> str:
    """Pause the delay topic; its path."""
    path = f"/v1/pauses/topic/{stand.bench.any}"
    stand.api.change("PUT", path, {})
    return path


def test_an_unconfirmed_change_says_what_holds_it_up(
    stand: Stand,
) -> None:
    api = stand.api
    stand.schedule("held", HOUR_MS)
    path = pause_all(stand)
    asked = {"id": "held", "wait_ms": 300}
    cancelled = api.change("POST", "/v1/records/cancel", {**asked, "id": "another"})
    moved = api.change("POST", "/v1/records/reschedule", {**asked, "after_ms": 2 * HOUR_MS})
    api.change("DELETE", path)
    why = f"delay topic {stand.bench.any} is paused, and the change takes effect after resume"
    assert cancelled["outcome"] is None
    assert cancelled["detail"].endswith(why)
    assert moved["outcome"] is None
    assert (
        "the replacement is not confirmed yet: if the old one was delivered meanwhile"
        in moved["detail"]
    )
    assert moved["detail"].endswith(why)


def test_an_id_in_two_partitions_is_cancelled_in_both(stand: Stand) -> None:
    for partition in range(PARTITIONS):
        stand.schedule("twice", HOUR_MS, partition=partition)
    said = stand.api.refused(
        "POST", "/v1/records/reschedule", 409, json={"id": "twice", "after_ms": HOUR_MS}
    )
    assert "name topic and partition" in said
    done = stand.api.change("POST", "/v1/records/cancel", {"id": "twice", "wait_ms": 20_000})
    assert (done["outcome"], len(done["written"])) == ("cancelled", PARTITIONS)
    assert stand.api.get("/v1/records", id="twice")[0]["fate"]["outcome"] == "cancelled"


def test_many_changes_that_wait_leave_room_for_probes_and_the_others_are_told_so(
    stand: Stand,
) -> None:
    api = stand.api
    path = pause_all(stand)
    body = {"id": "anything", "wait_ms": 4_000}
    with ThreadPoolExecutor(45) as pool:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        asked = [
            pool.submit(api.raw, "POST", "/v1/records/cancel", json=body, headers=bearer)
            for _ in range(45)
        ]
        assert api.raw("GET", "/healthz").status_code == 200
        assert sum(not one.done() for one in asked) >= WAITING_MAX
        answers = [one.result() for one in asked]
    api.change("DELETE", path)
    refused = [one for one in answers if one.status_code == 503]
    assert len(refused) >= 45 - WAITING_MAX * 2
    assert all(one.headers["retry-after"] == "1" for one in refused)
    done = [one.json()["outcome"] for one in answers if one.status_code == 200]
    assert done == [None] * (45 - len(refused))
    assert len(done) >= WAITING_MAX


def test_other_names_other_kinds_and_large_bodies_are_turned_away(stand: Stand) -> None:
    api = stand.api
    port = api.address.rpartition(":")[2]
    for name, status in (("evil.example", 421), (f"localhost:{port}", 200), ("", 421)):
        assert api.raw("GET", "/v1/node", headers={"Host": name}).status_code == status
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    large = {**bearer, "Content-Type": "application/json"}
    many = b'{"id": "' + b"x" * (1 << 20) + b'"}'
    assert api.raw("POST", "/v1/records/cancel", content=many, headers=large).status_code == 413

    def chunks() -> Iterator[bytes]:
        yield from (many[at : at + 65_536] for at in range(0, len(many), 65_536))

    refused = api.raw("POST", "/v1/records/cancel", content=chunks(), headers=large)
    assert refused.status_code == 411
    answer = api.raw("GET", "/v1/node")
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_ambiguous_requests_are_refused_with_the_reason(stand: Stand) -> None:
    api = stand.api
    cancel, pause = "/v1/records/cancel", f"/v1/pauses/target/{stand.target}"
    assert "is text/plain" in api.refused(
        "POST", cancel, 415, content_type="text/plain", content=b'{"id": "x"}'
    )
    assert "does not say" in api.refused("POST", cancel, 415, content=b'{"id": "x"}')
    assert "www-form" in api.refused("POST", cancel, 415, data={"id": "x"})
    assert "has no body" in api.refused("PUT", pause, 422)
    found = api.refused("GET", "/v1/pending?form=1&limit=1", 422)
    assert found.startswith("unknown in the query: form; /v1/pending takes: beyond_window, cursor,")
    assert "takes: none" in api.refused("POST", f"{cancel}?id=x", 422, json={"id": "x"})
    assert api.get("/v1/pauses") == []
    for method, path, allowed in (
        ("GET", cancel, "POST"),
        ("POST", pause, "DELETE, PUT"),
        ("DELETE", "/v1/node", "GET"),
    ):
        answer = api.raw(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_secrets_are_nowhere(stand: Stand) -> None:
    everything = json.dumps(stand.api.get("/v1/config")) + stand.bench.log_path.read_text("utf-8")
    assert '"token": "(hidden)"' in everything
    for secret in (TOKEN, *(s.partition("=")[2] for s in stand.bench.settings() if "secret=" in s)):
        assert secret not in everything


def test_the_cluster_is_told_as_it_is(stand: Stand) -> None:
    await_true(
        lambda: all(one["epoch"] for one in stand.api.get("/v1/cluster")["slices"]), "owners report"
    )
    found = stand.api.get("/v1/cluster")
    assert found["standalone"]
    assert [one["slice"] for one in found["slices"]] == list(range(PARTITIONS))
    assert found["ownerless"] == []
    assert {one["owner"] for one in found["slices"]} == {found["node_id"]}
    assert found["slices"][1]["shards"] == [f"{stand.bench.any}:1"]
    assert {one["name"]: one["partitions"] for one in found["topics"]} == {
        stand.bench.any: PARTITIONS
    }
    stand.bench.send([("delay-target-topic", stand.target.encode())], value=b"no time")
    stand.bench.read(stand.bench.dead_letter, 1)
    [letter] = stand.api.get("/v1/dead-letters", code="time-missing")["letters"]
    assert letter["source"].startswith(f"{stand.bench.any}:0:")
    assert not letter["is_replayed"]


def test_a_discovered_topic_is_a_delay_topic_like_a_configured_one(stand: Stand) -> None:
    api, bench = stand.api, stand.bench
    topic = bench.topic(f"{bench.any}_found", message_timestamp_type="LogAppendTime")
    headers = bench.to(stand.target, HOUR_MS, ("delay-id", "discovered"))
    partition, offset, _ = bench.send(headers, topic=topic)
    path = f"/v1/records/{topic}/{partition}/{offset}"

    def state() -> str:
        answer = api.raw("GET", path)
        return answer.json()["state"] if answer.status_code == 200 else "unknown"

    await_true(lambda: state() == "pending", "it is served, and found by place")
    assert topic in {one["name"] for one in api.get("/v1/cluster")["topics"]}
    assert f"<option>{topic}</option>" in api.raw("GET", "/pending").text
    api.change("PUT", f"/v1/pauses/topic/{topic}", {})
    await_true(
        lambda: topic in {t["name"] for t in api.get("/v1/cluster")["topics"] if t["is_paused"]},
        "the pause is seen",
    )
    api.change("DELETE", f"/v1/pauses/topic/{topic}")
    assert "no delay topic" in api.refused("PUT", "/v1/pauses/topic/orders", 404, json={})
    asked = {"id": "discovered", "topic": topic, "partition": partition}  # as the page does
    assert api.change("POST", "/v1/records/cancel", asked)["outcome"] == "cancelled"


def test_a_settled_record_says_what_became_of_it(stand: Stand) -> None:
    api, bench = stand.api, stand.bench
    expires = ("delay-expires-at", str(now_ms() + 1_500))
    paused = bench.target("expires")
    api.change("PUT", f"/v1/pauses/target/{paused}", {})
    places = {
        "delivered": bench.send(bench.to(stand.target, 0), key=b"k"),
        "dead_lettered": bench.send([("delay-target-topic", stand.target)]),
        "expired": bench.send(bench.to(paused, 0, expires), partition=1),
    }
    for outcome in ("cancelled", "replaced", "fired"):
        places[outcome] = stand.schedule(f"is {outcome}", HOUR_MS)
    cancelled = api.change("POST", "/v1/records/cancel", {"id": "is cancelled"})
    moved = {"id": "is replaced", "after_ms": 2 * HOUR_MS}
    replaced = api.change("POST", "/v1/records/reschedule", moved)
    fired = api.change("POST", "/v1/records/fire", {"id": "is fired"})

    def found(outcome: str) -> dict[str, Any]:
        partition, offset, _ = places[outcome]
        record: dict[str, Any] = api.get(f"/v1/records/{bench.any}/{partition}/{offset}")
        return record

    for outcome in ("delivered", "dead_lettered", "expired", "fired"):
        await_true(lambda name=outcome: found(name)["fate"], f"{outcome}: it is settled")  # type: ignore[misc]
    api.change("DELETE", f"/v1/pauses/target/{paused}")
    fates = {outcome: found(outcome)["fate"] for outcome in places}
    assert {name: fate["outcome"] for name, fate in fates.items()} == {
        **{name: name for name in places},
        "fired": "delivered",
    }
    assert {name: fate["place"].rsplit(":", 2)[0] for name, fate in fates.items()} == {
        **dict.fromkeys(("delivered", "fired"), stand.target),
        **dict.fromkeys(("cancelled", "replaced", "expired"), bench.outcomes),
        "dead_lettered": bench.dead_letter,
    }
    for outcome, change in (("cancelled", cancelled), ("replaced", replaced), ("fired", fired)):
        assert fates[outcome]["by"] == change["written"][0]
    assert fates["dead_lettered"]["detail"].startswith("time-missing: ")
    assert found("delivered")["detail"].startswith("delivered at 20")
    bench.send([("delay-id", b"is cancelled")], value=None, partition=places["cancelled"][0])
    [by_id] = api.get("/v1/records", id="is cancelled")
    assert by_id["fate"] == fates["cancelled"], "a cancel is not the record of its id"
    [still] = api.get("/v1/records", id="is replaced")
    assert still["due_ms"] > now_ms() + HOUR_MS, "what replaced it is pending"
    assert api.raw("GET", "/v1/records?id=nobody").status_code == 404
    page = api.raw("GET", f"/records/{bench.any}/0/{places['cancelled'][1]}").text
    assert fates["cancelled"]["place"] in page


def test_a_fate_is_found_by_where_a_record_was_written_and_wherever_it_was_delivered(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS) as bench:
        target = bench.target("spread", PARTITIONS)
        api = Asked(bench.serve(*SETS, "delivery.partitioner=fnv1a_random"))
        keyed = [bench.send(bench.to(target, 0), key=b"%d" % n) for n in range(4)]
        bench.read(target, len(keyed))
        rows = [f"/v1/records/{bench.any}/{place[0]}/{place[1]}" for place in keyed]
        await_true(lambda: all(api.get(row)["state"] == "settled" for row in rows), "all settled")
        assert [api.get(row)["fate"]["outcome"] for row in rows] == ["delivered"] * len(rows)
        home = partition_for(b"moved", PARTITIONS)
        headers = bench.to(target, HOUR_MS, ("delay-id", b"moved"))
        away = bench.send(headers, partition=1 - home)
        path = f"/v1/records/{bench.any}/{away[0]}/{away[1]}"
        await_true(lambda: api.get(path)["pending"], "it waits at its home")
        assert "was written again as" in api.get(path)["detail"]
        done = api.change("POST", "/v1/records/cancel", {"id": "moved"})
        await_true(lambda: api.get(path)["fate"], "it is cancelled")
        assert api.get(path)["fate"]["outcome"] == "cancelled"
        assert api.get(path)["fate"]["by"] == done["written"][0]
        api.close()


def test_a_record_whose_target_is_gone_says_that_it_could_not_be_read(stand: Stand) -> None:
    bench, gone = stand.bench, stand.bench.target("gone")
    partition, offset, _ = bench.send(bench.to(gone, 0))
    bench.read(gone, 1)
    bench.admin.delete_topics([gone])[gone].result(30)
    await_true(lambda: bench.partitions_of(gone) == 0, "the topic is gone")
    path = f"/v1/records/{bench.any}/{partition}/{offset}"
    await_true(lambda: stand.api.get(path)["state"] == "settled", "its cursor is committed")
    found = stand.api.get(path)
    assert found["fate"] is None
    assert "not in what the topics still hold" in found["detail"]
    assert f"{gone} does not exist, or may not be described" in found["detail"]


def test_a_dead_letter_is_replayed_once(stand: Stand) -> None:
    api, bench = stand.api, stand.bench
    bench.send([("delay-target-topic", stand.target.encode())], value=b"again")
    [letter] = bench.await_match(bench.dead_letter, lambda one: one.value == b"again")
    place = {"partition": letter.partition, "offset": letter.offset}
    done = api.change("POST", "/v1/dead-letters/replay", place)
    assert done["outcome"] == "replayed"
    again = bench.await_match(bench.dead_letter, lambda one: one.value == b"again", 2)
    assert again[1].header("delay-replays") == "1"
    for wrong, status, why in (
        (place, 409, "replayed already"),
        (place | {"offset": letter.offset + 90}, 404, "is no dead letter"),
    ):
        assert why in api.refused("POST", "/v1/dead-letters/replay", status, json=wrong)


def test_the_commands_ask_it_and_end_with_the_status_that_their_help_names(stand: Stand) -> None:
    command, bench = stand.api.command, stand.bench
    stand.schedule("by hand", HOUR_MS)
    shown = command("record", "show", "by hand", "--json")
    assert shown.exit_code == 0
    record = json.loads(shown.stdout)
    assert record["value"]["data"] == "by hand"
    rows = command("record", "list", "--target", stand.target, "--json", "--limit", "1000")
    listed = [json.loads(line) for line in rows.stdout.splitlines()]
    assert "by hand" in {row["id"]["data"] for row in listed if row["id"]}
    assert "within 24 hours" in command("record", "list", "--counts").stdout
    at = f"{record['topic']}:{record['partition']}:{record['offset']}"
    assert "waits for its due time" in command("record", "show", at).stdout
    moved = command("record", "reschedule", "by hand", "--after", "2h")
    assert (moved.exit_code, moved.stdout.split(":")[0]) == (0, "replaced")
    cancelled = command("record", "cancel", "by hand", "--json")
    assert cancelled.exit_code == 0
    assert json.loads(cancelled.stdout)["outcome"] == "cancelled"
    assert command("record", "cancel", "by hand").exit_code == 4
    assert command("record", "fire", "by hand").exit_code == 4
    assert "settled: cancelled by" in command("record", "show", "by hand").stdout
    assert command("record", "show", "never written").exit_code == 4
    assert command("status").exit_code == 0
    assert "moves to" in command("cluster", "show").stdout
    target = bench.target_name("by_hand")
    assert command("pause", "add", "target", target, "--reason", "tried").exit_code == 0
    await_true(lambda: "tried" in command("pause", "list").stdout, "the pause is heard of")
    assert "tester" in command("pause", "list").stdout
    assert command("pause", "remove", "target", target).exit_code == 0
    await_true(lambda: command("pause", "remove", "target", target).exit_code == 4, "it is over")
    misspelt = command("pause", "add", "target", "nosuch?*", sets=bench.settings()[:1])
    assert "no topic matches nosuch?*" in misspelt.stderr
    assert "nosuch?*" in command("pause", "list").stdout
    assert command("pause", "remove", "target", "nosuch?*").exit_code == 0
    refused = command(
        "pause", "add", "target", target, sets=["admin.tokens.tester.token=not the right token"]
    )
    assert "is not this node's" in refused.stderr


def test_send_refuses_what_will_not_arrive_and_waits_for_what_a_cancel_did(stand: Stand) -> None:
    bench = stand.bench
    node = [value for one in bench.settings() if "=" in one for value in ("--set", one)]

    def send(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["send", "--topic", bench.any, *arguments, "--json", *node])

    missing = bench.target_name("missing")
    warned = send("x", "--after", "1h", "--target", missing, "--id", "by send")
    assert (warned.exit_code, warned.stderr) == (
        0,
        f"warning: its target {missing} does not exist (yet)\n",
    )
    denied = ["x", "--after", "1h", "--target", "delay_outcomes"]
    assert send(*denied).exit_code == 2
    assert "(target-denied)" in send(*denied, "--force").stderr
    heard = send("--id", "by send", "--cancel", "--wait", "20s")
    assert (heard.exit_code, json.loads(heard.stdout)["outcome"]) == (0, "cancelled")
    again = send("--id", "by send", "--cancel", "--wait", "20s")
    assert (again.exit_code, json.loads(again.stdout)["outcome"]) == (4, "not_pending")
    unheard = send("--id", "by send", "--cancel", "--wait", "0")
    assert (unheard.exit_code, json.loads(unheard.stdout)["outcome"]) == (5, None)
    unwaited = CliRunner().invoke(app, ["send", "--topic", bench.any, "--id", "x", "--fire", *node])
    assert unwaited.exit_code == 0
    assert "written, outcome unknown" in unwaited.stdout
    unwanted = send("x", "--after", "1s", "--wait", "1s")
    assert unwanted.exit_code == 2


def test_control_characters_in_api_text_are_escaped_on_a_terminal(stand: Stand) -> None:
    hostile = "\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}"
    headers = [*stand.bench.to(stand.target, HOUR_MS, ("delay-id", "x")), (f"h{hostile}", hostile)]
    stand.bench.send(headers, key=hostile.encode(), value=hostile.encode())
    await_true(lambda: stand.waits(id="x"), "it waits")
    path = f"/v1/pauses/target/{stand.bench.target_name('hostile')}"
    stand.api.change("PUT", path, {"reason": hostile})
    await_true(
        lambda: "paused since" in stand.api.command("status").output, "the status tells of it"
    )
    words = ("record show x", f"record show {hostile}", "record list", "pause list", "status")
    told = [stand.api.command(*line.split()).output for line in words]
    stand.api.change("DELETE", path)
    shown = "".join(told)
    assert [text.count("\ufffd[31m\ufffd") for text in told] == [4, 0, 0, 1, 1]
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_a_node_that_is_stopped_answers_those_who_wait_and_does_not_wait_for_them(
    stand: Stand,
) -> None:
    api = stand.api
    path = pause_all(stand)
    before = len(stand.bench.read_all(stand.bench.any))
    body = {"id": "anything", "wait_ms": 30_000}
    with ThreadPoolExecutor(3) as pool:
        waits: list[Future[Any]] = [
            pool.submit(api.change, "POST", "/v1/records/cancel", body) for _ in range(3)
        ]
        await_true(
            lambda: len(stand.bench.read_all(stand.bench.any)) == before + 3, "all are written"
        )
        assert stand.service.stop() == 0
        answers = [one.result() for one in waits]
    assert [one["outcome"] for one in answers] == [None] * 3
    assert all("this node is stopping" in one["detail"] for one in answers)
    stand.again()
    stand.api.change("DELETE", path)


def test_requests_are_answered_as_the_openapi_description_says(
    stand: Stand, tmp_path: Path
) -> None:
    run, answers = fuzz(stand.api.address, tmp_path, "--max-examples", "30", "--seed", "1")
    assert run.returncode == 0, run.stdout[-6_000:]
    assert answers.total() > 200
    paths = stand.api.get("/openapi.json")["paths"]
    described = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
    assert {answer.partition(" ")[2] for answer in answers} == described
    assert [answer for answer in answers if answer[0] in "05"] == []
    assert stand.api.raw("GET", "/healthz").status_code == 200
