"""The admin API when workers hang, lag or say nothing: what no real node does on demand."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from confluent_kafka import Consumer
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from connectors.kafka import clients, fate
from connectors.kafka.fate import FateFinder
from connectors.kafka.outcomes import together
from delayservice.admin import context as context_module
from delayservice.admin.changing import Aim, aim_of, refuse_what_would_fail, said
from delayservice.admin.context import ApiContext, OneAtATime
from delayservice.admin.http_server import HttpServer
from delayservice.admin.inquiry import Kept
from delayservice.admin.models import Bulk, ById, Matching, Reschedule
from delayservice.admin.problems import Refusal
from delayservice.admin.reading import pending_page, position_of, timeline_of
from delayservice.admin.server import admin_tokens, make_app
from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.cli import app as command_line
from delayservice.commands import status as status_command
from delayservice.config.settings import Settings, load
from delayservice.contract.entry import RecordPlace
from delayservice.contract.partitioner import partition_for
from delayservice.engine.cursor import CountRange
from delayservice.inspection.query import BacklogCounts, Page, Pending
from delayservice.metrics.facts import why_not_electable
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_slice, encode_snapshot
from delayservice.metrics.status import SliceState
from ha.members import Holding, Members
from tests.unit.mock_cluster import mock_cluster

TOKEN = "a token that only the tests know"  # noqa: S105
NOW_MS = 1_700_000_000_000
TOPIC = "delay_topic_any"
THREADS = 40
"""What the server has for all of its requests (anyio)."""
ROW = Pending(
    topic=TOPIC,
    partition=1,
    offset=7,
    next_ms=NOW_MS + 60_000,
    due_ms=NOW_MS + 60_000,
    target="orders",
    target_partition=None,
    id=b"r",
    key=None,
    value=None,
    value_bytes=None,
    headers=[],
    source=f"{TOPIC}:1:7",
    attempt=1,
    expires_ms=None,
    recurs=False,
    marked_by=None,
)


FOUR_PARTITIONS = SimpleNamespace(
    topics={
        TOPIC: SimpleNamespace(error=None, partitions=range(4)),
        "orders": SimpleNamespace(error=None, partitions=range(4)),
    }
)


class Hung:
    """Workers that answer nothing until they are let go, and then that they can't."""

    def __init__(self) -> None:
        self.asked = 0
        self.let_go = threading.Event()
        self.is_full = threading.Event()

    def find(self, _: bytes) -> list[Pending]:
        self.asked += 1
        if self.asked == THREADS:
            self.is_full.set()
        self.let_go.wait(30)
        raise DelayServiceError("a worker did not answer within 10 s")

    def members(self) -> Members:
        slices = [
            Holding(slice=number, owner="another", worker=0, epoch=1, heir="")
            for number in range(4)
        ]
        return Members(nodes=[], slices=slices, copies=[])


def settings(*sets: str) -> Settings:
    return load(
        None,
        [f"topics.delay={TOPIC}", f"admin.tokens.tester.token={TOKEN}", "node.workers=1", *sets],
        {},
    )


def hub_of(found: Settings, *slices: SliceState) -> MetricsHub:
    hub = MetricsHub(found)
    hub.update(0, encode_snapshot(Snapshot(1), [encode_slice(one) for one in slices]))
    return hub


def context_of(inquiry: object, *sets: str, slices: tuple[SliceState, ...] = ()) -> ApiContext:
    found = settings(*sets)
    hub = hub_of(found, *slices)
    return ApiContext(
        found,
        hub=hub,
        inquiry=cast("Any", inquiry),
        admin=cast("Any", SimpleNamespace(list_topics=lambda **_: FOUR_PARTITIONS)),
        desk=cast("Any", None),
        pauses=cast("Any", None),
        wall_ms=lambda: NOW_MS,
    )


# --- health --------------------------------------------------------------------------------------


def test_probes_are_answered_while_all_server_threads_wait() -> None:
    hung = Hung()
    app = make_app(context_of(hung, slices=(behind(0),)), [])
    ok, not_ready = asyncio.run(_probe_while_full(app, hung))
    assert ok.status_code == 200
    assert not_ready.status_code == 503
    assert not_ready.json()["detail"] == f"slice 0: {BEHIND}"


@pytest.mark.parametrize(("alarm", "exit_code"), [("", 0), ("its log lost its end", 3)])
def test_the_exit_status_of_status_is_the_health_of_the_node(alarm: str, exit_code: int) -> None:
    done = _status(SliceState(0, state="owner", alarm=alarm, stored=1_234))
    assert done.exit_code == exit_code, done.output
    assert "1,234" in done.stdout
    assert alarm in done.stdout


@pytest.mark.parametrize(("ago_ms", "shown"), [(500, "now"), (7_500_000, "2 hours ago")])
def test_status_shows_a_record_as_overdue_only_if_it_was_there_when_last_counted(
    monkeypatch: pytest.MonkeyPatch, ago_ms: int, shown: str
) -> None:
    due_ms = time.time_ns() // 1_000_000 - ago_ms
    monkeypatch.setattr(status_command, "now_ms", lambda: due_ms + ago_ms)
    done = _status(SliceState(0, state="owner", oldest_due_ms=due_ms))
    assert shown in done.stdout


def _status(state: SliceState) -> Result:
    server = HttpServer(make_app(context_of(None, slices=(state,)), []), "admin", "127.0.0.1:0")
    try:
        return CliRunner().invoke(command_line, ["status", "--api", str(server.serve())])
    finally:
        server.close()


async def _probe_while_full(app: FastAPI, hung: Hung) -> tuple[httpx.Response, httpx.Response]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        waiting = [asyncio.create_task(client.get("/v1/records?id=r")) for _ in range(THREADS + 5)]
        try:
            assert await asyncio.to_thread(hung.is_full.wait, 20), "not every thread waits"
            async with asyncio.timeout(5):
                return await client.get("/healthz"), await client.get("/readyz")
        finally:
            hung.let_go.set()
            await asyncio.gather(*waiting)


BEHIND = "its copy is 12 s behind and is catching up"
REFUSAL = "slice 3 is served with another cluster secret"


def behind(slice_no: int) -> SliceState:
    return SliceState(slice_no, state="catching_up", cause="catching_up", reason=BEHIND)


def test_a_node_with_alarms_is_ready_and_says_so_in_its_state() -> None:
    hub = hub_of(settings(), SliceState(0, state="owner", alarm="the disk is full"))
    assert why_not_electable(hub.facts()) == []
    assert hub.status().problems == ["slice 0: the disk is full"]


def test_a_node_is_not_ready_while_a_copy_is_behind_or_a_worker_has_not_reported() -> None:
    hub = hub_of(settings("node.workers=2"), *map(behind, range(12)), SliceState(12))
    said = [
        "worker 1: the worker was lost, or has not reported yet",
        f"slices 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more: {BEHIND}",
    ]
    assert why_not_electable(hub.facts()) == said
    assert hub.status().problems == said, "status, metrics and /readyz say the same"
    assert not hub.status().healthy
    assert [tuple(one)[:3] for one in hub.facts().unelectable][:2] == [
        (0, 0, "catching_up"),
        (0, 1, "catching_up"),
    ]


def test_a_node_that_lacks_the_cluster_secret_is_not_ready() -> None:
    refused = SliceState(3, state="refused", cause="refused", reason=REFUSAL, alarm=REFUSAL)
    hub = hub_of(settings(), refused)
    assert why_not_electable(hub.facts()) == [f"slice 3: {REFUSAL}"]
    assert hub.status().problems == [f"slice 3: {REFUSAL}"], "once"


def test_problems_of_a_worker_count_for_all_its_slices() -> None:
    hub = MetricsHub(settings())
    verdict = ("zookeeper_unusable", "ZooKeeper can't be used: wrong password")
    hub.update(0, encode_snapshot(Snapshot(1, verdict=verdict), [encode_slice(behind(0))]))
    assert why_not_electable(hub.facts()) == [f"worker 0: {verdict[1]}"]
    assert [tuple(one) for one in hub.facts().unelectable] == [(0, None, *verdict)]


def test_a_node_that_waits_for_kafka_before_it_has_workers_says_so() -> None:
    hub = MetricsHub(settings())
    hub.kafka_missing("no broker answers")
    assert why_not_electable(hub.facts()) == ["worker 0: Kafka can't be reached: no broker answers"]
    hub.kafka_missing("")
    assert "has not reported yet" in why_not_electable(hub.facts())[0]


def test_a_failure_is_told_to_all_who_wait_and_kept() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        raise DelayServiceError("no broker answers")

    kept = Kept(ask, 60.0)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(kept.get) for _ in range(8)]
    assert [str(one.exception()) for one in answers] == ["no broker answers"] * 8
    assert len(asked) == 1


def test_in_an_outage_of_kafka_one_request_waits_and_others_do_not() -> None:
    begun, go_on, answers = threading.Event(), threading.Event(), [7]

    def ask() -> int:
        if answers:
            return answers.pop()
        begun.set()
        go_on.wait(10)
        raise DelayServiceError("no broker answers")

    kept = Kept(ask, -1.0, takes_old=True)
    assert kept.get() == 7
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kept.get)
        assert begun.wait(10)
        assert [kept.get() for _ in range(50)] == [7] * 50
        go_on.set()
    assert str(waiting.exception()) == "no broker answers"


# --- changes -------------------------------------------------------------------------------------


def test_a_page_says_how_much_of_the_copy_it_could_not_read() -> None:
    found = Page(rows=[ROW], upto=None, scanned=5, damaged=2)
    inquiry = SimpleNamespace(search=lambda _: found, members=Hung().members)
    page = pending_page(context_of(inquiry), Matching())
    assert (len(page.records), page.scanned, page.damaged) == (1, 5, 2)


def test_a_control_with_topic_and_partition_is_written_unasked() -> None:
    hung = Hung()
    aim = aim_of(context_of(hung), ById(id="r", topic=TOPIC, partition=2), b"r")
    assert aim.places == [(TOPIC, 2)]
    assert hung.asked == 0


def test_where_workers_do_not_say_where_a_record_is_the_answer_says_what_to_name() -> None:
    hung = Hung()
    hung.let_go.set()
    with pytest.raises(Refusal) as caught:
        aim_of(context_of(hung), ById(id="r"), b"r")
    assert caught.value.status == 503
    assert "a worker did not answer within 10 s" in caught.value.detail
    assert "With topic and partition it is written without asking" in caught.value.detail


@pytest.mark.parametrize(("topic", "partition"), [("orders", 0), (TOPIC, 4)])
def test_a_place_that_takes_no_controls_is_refused(topic: str, partition: int) -> None:
    with pytest.raises(Refusal) as caught:
        aim_of(context_of(Hung()), ById(id="r", topic=topic, partition=partition), b"r")
    assert caught.value.status == 404


def test_an_id_that_is_found_nowhere_here_may_wait_where_this_node_keeps_no_whole_copy() -> None:
    hung = Hung()
    hung.find = lambda _: []  # type: ignore[method-assign]
    states = {0: "owner", 1: "catching_up", 2: "replica"}
    context = context_of(hung, slices=tuple(SliceState(n, state=s) for n, s in states.items()))
    aim = aim_of(context, ById(id="r"), b"r")
    assert aim.places == [(TOPIC, partition_for(b"r", 4))]
    assert aim.elsewhere == [1, 3]
    assert "no whole copy of slices 1, 3: the record may wait there" in said("not_pending", aim)
    assert "whole copy" not in said("cancelled", aim)
    assert "whole copy" not in said("not_pending", Aim([(TOPIC, 0)]))


def test_of_several_places_nothing_was_pending_only_if_all_of_them_say_so() -> None:
    one, two = RecordPlace(TOPIC, 0, 5), RecordPlace(TOPIC, 1, 9)
    assert together([one, two], {one: "not_pending"}) is None
    assert together([one, two], {two: "cancelled"}) == "cancelled"
    assert together([one, two], {one: "not_pending", two: "cancelled"}) == "cancelled"
    assert together([one, two], {one: "not_pending", two: "not_pending"}) == "not_pending"
    assert together([one], {}) is None
    assert together([], {}) is None


def test_a_search_of_an_outcome_that_opens_many_consumers_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, address = mock_cluster(TOPIC)
    for _ in range(500):  # each of another record of its id
        cluster.produce(
            "delay_outcomes",
            partition=0,
            headers={
                "delay-id": b"r",
                "delay-outcome": b"replaced",
                "delay-shard": f"{TOPIC}:0".encode(),
                "delay-settles": b"0",
                "delay-settled-by": b"5",
            },
        )
    assert cluster.flush(10) == 0
    opened: list[Consumer] = []

    def consumer_client(options: dict[str, Any]) -> Consumer:
        opened.append(clients.consumer_client(options))
        return opened[-1]

    monkeypatch.setattr(fate, "consumer_client", consumer_client)
    # A tenth of a second for each, however long it takes on this machine.
    clock = SimpleNamespace(monotonic=lambda: len(opened) / 10)
    monkeypatch.setattr(fate, "time", clock)
    monkeypatch.setattr(fate, "READ_S_MAX", 0.5)
    monkeypatch.setattr(fate, "offsets_since", lambda *_: {("delay_outcomes", 0): 0})
    found = settings(f"kafka.bootstrap={address}")
    finder = FateFinder(found, cast("Any", None), lambda: NOW_MS, threading.Lock())
    sought = fate._Sought(TOPIC, 1, ROW.offset, ROW)
    assert finder._read(sought, "delay_outcomes", [0], 0, "") is None
    assert sought.problems == {"delay_outcomes holds more than was read"}
    assert 1 < len(opened) < 500


def test_an_outcome_that_names_what_is_gone_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, address = mock_cluster(TOPIC)
    gone: dict[str, str | bytes | None]
    gone = {"delay-id": b"r", "delay-outcome": b"replaced", "delay-settled-by": b"5"}
    gone |= {"delay-shard": f"{TOPIC}:0".encode(), "delay-settles": b"999"}
    own = gone | {"delay-outcome": b"cancelled", "delay-shard": f"{TOPIC}:1".encode()}
    own["delay-settles"] = b"%d" % ROW.offset
    for headers in (gone, own):
        cluster.produce("delay_outcomes", partition=0, headers=headers)
    assert cluster.flush(10) == 0
    found = settings(f"kafka.bootstrap={address}")
    monkeypatch.setattr(fate, "offsets_since", lambda *_: {("delay_outcomes", 0): 0})
    finder = FateFinder(found, cast("Any", None), lambda: NOW_MS, threading.Lock())
    sought = fate._Sought(TOPIC, 1, ROW.offset, ROW)
    told = finder._read(sought, "delay_outcomes", [0], 0, "")
    assert told is not None, sought.problems
    assert told.outcome == "cancelled"
    assert not sought.problems


@pytest.mark.parametrize("shard", [b"", b"any:", b"any:x", b"any:%d" % 2**31, b"\xff:1"])
def test_headers_of_users_that_look_like_those_of_an_outcome_are_none(shard: bytes) -> None:
    finder = FateFinder(settings(), cast("Any", None), lambda: NOW_MS, threading.Lock())
    sought = fate._Sought(TOPIC, 1, ROW.offset, ROW)
    said = {"delay-id": b"r", "delay-settled-by": b"1", "delay-settles": b"5", "delay-shard": shard}
    assert not finder._settles_copy(sought, said)


def refused(row: Pending, *sets: str, state: str = "owner", **asked: Any) -> Refusal:
    context = context_of(Hung(), *sets, slices=(SliceState(1, state=state),))
    with pytest.raises(Refusal) as caught:
        refuse_what_would_fail(context, row, Reschedule(id="r", **asked))
    assert "nothing was written" in caught.value.detail
    return caught.value


def with_times(**times: Any) -> Pending:
    return replace(ROW, **times)


@pytest.mark.parametrize(
    ("times", "sets", "asked"),
    [
        ({}, ["delivery.max_delay_ms=1d"], {"after_ms": 86_400_001}),
        ({}, ["delivery.max_delay_ms=1d", "delivery.clamp=true"], {"at_ms": NOW_MS + 86_400_001}),
        ({}, ["delivery.past_due=dead-letter"], {"at_ms": NOW_MS - 1}),
        ({"expires_ms": NOW_MS + 90_000}, [], {"after_ms": 90_000}),
        ({"expires_ms": NOW_MS + 90_000}, [], {"at_ms": NOW_MS + 90_001}),
        ({"due_ms": NOW_MS + 1_999, "next_ms": NOW_MS + 1_999}, [], {"after_ms": 60_000}),
        ({"target": TOPIC, "target_partition": 1}, [], {"after_ms": 60_000}),
        ({"recurs": True}, [], {"after_ms": 60_000}),
    ],
)
def test_a_reschedule_that_would_fail_is_refused(
    times: dict[str, Any], sets: list[str], asked: dict[str, Any]
) -> None:
    assert refused(with_times(**times), *sets, **asked).status == 409


def test_a_reschedule_from_a_copy_that_catches_up_is_refused() -> None:
    behind = refused(ROW, state="catching_up", after_ms=60_000)
    assert behind.status == 503
    assert "ask the node that owns it" in behind.detail


@pytest.mark.parametrize("seconds", ["1893456000", "1893456000.0", '"1893456000"'])
def test_a_time_in_seconds_is_refused_however_it_is_written(seconds: str) -> None:
    with pytest.raises(ValueError, match="looks like seconds"):
        Reschedule.model_validate_json(f'{{"id": "r", "at_ms": {seconds}}}')
    with pytest.raises(ValueError, match="looks like seconds"):
        Bulk.model_validate_json(f'{{"operation": "cancel", "from": {seconds}}}')


def test_a_time_may_be_a_whole_number_with_a_fraction_of_zero() -> None:
    assert Reschedule.model_validate_json('{"id": "r", "at_ms": 1893456000000.0}').at_ms == (
        1_893_456_000_000
    )


def test_a_reschedule_that_would_not_fail_is_not_refused() -> None:
    context = context_of(Hung(), "delivery.max_delay_ms=1d", slices=(SliceState(1, state="owner"),))
    put_off = with_times(due_ms=NOW_MS - 1_000, next_ms=NOW_MS + 30_000)
    expires = with_times(expires_ms=NOW_MS + 90_000)
    refuse_what_would_fail(context, ROW, Reschedule(id="r", after_ms=86_400_000))
    refuse_what_would_fail(context, ROW, Reschedule(id="r", at_ms=0))
    refuse_what_would_fail(context, expires, Reschedule(id="r", after_ms=89_999))
    refuse_what_would_fail(context, put_off, Reschedule(id="r", after_ms=60_000))


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cursor", [f"{2**63}:t:0:0", f"0:t:{2**31}:0", f"0:t:0:{2**63}", "-1:t:0:0", "0:t t:0:0", ""]
)
def test_a_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(Refusal) as caught:
        position_of(cursor)
    assert caught.value.status == 400


def test_a_cursor_that_a_page_gave_is_read() -> None:
    assert position_of(f"5:t:1:{2**63 - 1}") == (5, "t", 1, 2**63 - 1)


def test_requests_that_read_much_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "_TURN_WAIT_S", 0.01)
    turn = OneAtATime()
    with turn, pytest.raises(Refusal) as caught, turn:
        pytest.fail("two at a time")
    assert caught.value.status == 503
    with turn:
        pass


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def made_token(state_dir: Path) -> str:
    ((name, secret, may_change),) = admin_tokens(load(None, [f"node.state_dir={state_dir}"], {}))
    assert (name, may_change) == ("admin", True)
    return secret


def test_a_token_is_made_once_and_only_its_user_may_read_it(state_dir: Path) -> None:
    (state_dir / "admin_token.new").write_text("half")  # a node that was killed has left it
    token = made_token(state_dir)
    assert len(token) >= 16
    assert made_token(state_dir) == token
    assert (state_dir / "admin_token").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in state_dir.iterdir()] == ["admin_token"]


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_a_node_does_not_start_with_a_short_token(state_dir: Path, content: str) -> None:
    (state_dir / "admin_token").write_text(content)
    with pytest.raises(SettingsError, match="16 at least: delete it"):
        made_token(state_dir)


@pytest.mark.parametrize(
    ("ranges", "unit", "coarse_from_ms"),
    [
        ([(NOW_MS, NOW_MS + 1, 1), (NOW_MS + 1_000, NOW_MS + 2_000, 9)], "second", None),
        ([(NOW_MS, NOW_MS + 1, 1), (NOW_MS + 9_000, NOW_MS + 69_000, 9)], "second", 9_000),
        ([(NOW_MS + 9_000, NOW_MS + 69_000, 9)], "minute", None),
        ([(NOW_MS + 900_000, NOW_MS + 960_000, 9)], "second", None),
    ],
)
def test_a_timeline_says_where_it_is_coarse(
    ranges: list[CountRange], unit: str, coarse_from_ms: int | None
) -> None:
    horizon = BacklogCounts(ranges=ranges)
    context = SimpleNamespace(
        wall_ms=lambda: NOW_MS,
        inquiry=SimpleNamespace(horizon=lambda: horizon),
        slices_elsewhere=list,
    )
    found = timeline_of(cast("Any", context), unit, 60).coarse_from_ms
    assert found == (None if coarse_from_ms is None else NOW_MS + coarse_from_ms)
