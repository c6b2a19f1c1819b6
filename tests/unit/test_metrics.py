"""From a worker's counters to what is exported, and alerts and dashboard that are built on it."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response

from connectors.kafka.audits import AuditWatcher
from delayservice.admin import http_server
from delayservice.admin.http_server import HttpServer, make_metrics_app
from delayservice.base.errors import DelayServiceError
from delayservice.config.settings import load
from delayservice.engine.census import TopicCounts, Waiting
from delayservice.engine.outcome import OUTCOME_NAMES
from delayservice.engine.pauses import Pause, Paused, Pauses, decode_pause
from delayservice.metrics import status as status_model
from delayservice.metrics.counts import (
    BOUNDS_MS,
    TARGETS_MAX,
    AuditFacts,
    ReconcileFacts,
    WorkerMetrics,
)
from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, decode_snapshot, encode_slice, encode_snapshot
from delayservice.metrics.status import PAUSES_TOLD_MAX, PauseFacts, SliceState, pause_facts
from tests.alert_rules import (
    DASHBOARD,
    FROM_SCRAPING,
    OPERATIONS,
    ROOT,
    RULES,
    SCRAPING,
    Alert,
    Labels,
    Reader,
    alerts,
    panels,
    queries,
    recorded,
    run_book,
    with_recorded,
)
from tests.elapsed import Clock
from tests.integration.bench import await_true
from tests.needs import program

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def busy(number: int = 0, pending: int = 4) -> SliceState:
    state = SliceState(number, state="owner", pending=pending, oldest_due_ms=1_500)
    state.cursor_age_s, state.epoch, state.lag_s = 1, 3, 0.0
    state.topics = {"delay_topic_any": TopicCounts(4, [1] * 12, {"orders": Waiting(4, 0)})}
    return state


def counted(count: int) -> WorkerMetrics:
    worker = WorkerMetrics(
        ingested=count, settled={"delivered": count}, rejected={"time-missing": 1}
    )
    worker.delivered("delay_topic_any", "orders", [1, 2, 4_000][:count])
    return worker


def packed(pid: int, slices: list[SliceState], count: int = 3) -> bytes:
    snapshot = Snapshot(pid, worker=counted(count))
    return encode_snapshot(snapshot, [encode_slice(one) for one in slices])


def hub(time: Clock | None = None) -> MetricsHub:
    return MetricsHub(load(None, ["node.workers=1"], {}), time or Clock(100.0))


def server(of: MetricsHub, listen: str = "127.0.0.1:0") -> HttpServer:
    return HttpServer(make_metrics_app(of), "metrics", listen)


def samples(of: MetricsHub) -> dict[str, float]:
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in export(of.facts())
        for sample in family.samples
    }


@pytest.fixture
def served() -> Iterator[tuple[MetricsHub, str]]:
    shown = hub()
    serving = server(shown)
    address = serving.serve()
    assert address is not None
    yield shown, f"http://{address}"
    serving.close()
    serving.close()


def get(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as got:  # noqa: S310 (our own server)
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@given(st.lists(st.integers(min_value=-10, max_value=5_000_000)), st.booleans())
def test_a_batch_falls_into_the_same_buckets_as_one_by_one(values: list[int], split: bool) -> None:  # noqa: FBT001
    worker = WorkerMetrics()
    for batch in (values[::2], values[1::2]) if split else (values,):
        worker.delivered("delay_topic_any", "orders", batch)
    lateness = worker.lateness
    cumulative = [sum(lateness.counts[: n + 1]) for n in range(len(lateness.counts))]
    assert cumulative[:-1] == [sum(v <= bound for v in values) for bound in BOUNDS_MS]
    assert cumulative[-1] == len(values)
    assert lateness.sum_ms == sum(values)
    assert worker.early == sum(v < 0 for v in values)


def test_only_slices_that_changed_are_unpacked_again() -> None:
    before = decode_snapshot(packed(7, [busy(0), busy(1)]))
    after = decode_snapshot(packed(7, [busy(0), busy(1, pending=2)]), before.packed)
    first, second = after.slices
    assert first is next(iter(before.slices))
    assert first == busy(0)
    assert second == busy(1, pending=2)


def test_pending_is_summed_by_target_with_a_bounded_number_of_series() -> None:
    good = {f"good-{n}": Waiting(100 + n, 0) for n in range(15)}
    bad = {f"bad-{n}": Waiting(1, 1) for n in range(400)}
    slices = [SliceState(n, state="owner") for n in range(2)]
    for metrics in slices:
        metrics.topics = {"delay_topic_any": TopicCounts(2_005, [5] * 12, good | bad)}
    collecting = hub()
    collecting.update(0, packed(1, slices))
    shown = samples(collecting)
    parked = [value for name, value in shown.items() if name.startswith("delay_target_parked")]
    pending = {n: v for n, v in shown.items() if n.startswith("delay_target_pending")}
    assert (len(parked), sum(parked)) == (TARGETS_MAX + 1, 800)
    assert sum(pending.values()) == 2 * sum(w.pending for w in (good | bad).values())
    assert sum("good-" in name for name in pending) == 10
    assert "delay_target_parked[('target', '(other)'), ('topic', 'delay_topic_any')]" in shown
    assert shown["delay_pending_due[('topic', 'delay_topic_any'), ('within', '5s')]"] == 10
    assert shown["delay_pending_due[('topic', 'delay_topic_any'), ('within', 'any')]"] == 4_010
    assert collecting.status().targets[0].parked == 780


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02"])
def test_an_unreadable_snapshot_is_an_internal_error(data: bytes) -> None:
    with pytest.raises(DelayServiceError, match="one version"):
        hub().update(0, data)


def test_counters_never_go_back_when_a_worker_is_replaced() -> None:
    collecting = hub()
    collecting.update(0, packed(1, [busy()]))
    collecting.forget(0)
    assert samples(collecting)["delay_ingested_total[]"] == 3
    assert "delay_pending[('slice', '0')]" not in samples(collecting)
    collecting.update(0, packed(2, [busy()], count=1))
    assert samples(collecting)["delay_ingested_total[]"] == 4
    assert samples(collecting)["delay_settled_total[('outcome', 'delivered')]"] == 4
    assert samples(collecting)["delay_worker_restarts_total[('worker', '0')]"] == 1


def test_counters_of_a_replaced_worker_are_kept() -> None:
    time = Clock(100.0)
    collecting = hub(time)

    def report(pid: int, cpu_s: float, count: int) -> None:
        worker = WorkerMetrics(cpu_s=cpu_s, memory_bytes=5 << 20)
        worker.delivered("delay_topic_any", "orders", [3] * count)
        worker.turns.observe([4])
        collecting.update(0, encode_snapshot(Snapshot(pid, worker=worker)))
        time.now_s += 2

    report(1, 10.0, 4)
    report(1, 11.0, 5)
    (state,) = collecting.status().workers
    assert (state.cpu_ratio, state.memory_bytes) == (0.5, 5 << 20)
    collecting.forget(0)
    report(2, 1.0, 7)
    shown = samples(collecting)
    assert shown["delay_worker_cpu_seconds_total[('worker', '0')]"] == 12.0
    (target,) = collecting.status().targets
    assert (target.delivered, target.lateness_ms_p99, target.pending) == (12, 5, 0)


def test_the_pairs_of_a_replaced_worker_are_bounded_and_no_counter_goes_back() -> None:
    collecting = hub()
    before: dict[str, float] = {}
    for life in range(4):
        worker = WorkerMetrics()
        for number in range(TARGETS_MAX - 5):
            worker.delivered(f"delay-{number % 2}", f"target-{life}-{number}", [3])
        collecting.update(0, encode_snapshot(Snapshot(life, worker=worker)))
        for _ in range(2):  # before the worker ends, and after
            shown = samples(collecting)
            counts = {k: n for k, n in shown.items() if k.startswith("delay_lateness_seconds_co")}
            assert all(counts.get(name, 0) >= count for name, count in before.items())
            assert sum(counts.values()) == (life + 1) * (TARGETS_MAX - 5)
            assert len(counts) <= TARGETS_MAX + 2
            before = counts
            collecting.forget(0)


def test_the_number_of_series_grows_with_the_slices_by_gauges_only() -> None:
    one, many = hub(), hub()
    one.update(0, packed(1, [busy(0)]))
    many.update(0, packed(1, [busy(number) for number in range(1_000)]))
    assert len(samples(many)) - len(samples(one)) == 999 * 13


def test_the_cursor_of_a_silent_worker_grows_old_and_the_node_unhealthy() -> None:
    time = Clock(100.0)
    collecting = hub(time)
    assert not collecting.status().healthy
    collecting.update(0, packed(1, [busy()]))
    assert collecting.status().healthy
    time.now_s += 20
    assert samples(collecting)["delay_cursor_age_seconds[('slice', '0')]"] == 21
    status = collecting.status()
    assert status.problems == ["worker 0: the worker is silent for 20 s"]


def test_metrics_and_status_are_served(served: tuple[MetricsHub, str]) -> None:
    serving, url = served
    serving.update(0, packed(1, [busy()]))
    code, text = get(f"{url}/metrics")
    assert code == 200
    assert len(list(text_string_to_metric_families(text))) > 10
    assert (
        'delay_lateness_seconds_bucket{le="0.002",target="orders",topic="delay_topic_any"} 2.0'
        in text
    )
    code, text = get(f"{url}/status")
    assert (code, json.loads(text)["slices"][0]["pending"]) == (200, 4)
    assert get(f"{url}/else")[0] == 404
    assert get(f"{url}/status", "POST")[0] == 405


def test_the_newest_comparison_is_reported_by_the_worker_that_read_it() -> None:
    collecting = hub()
    copies = ReconcileFacts(1_500, {"missing": 3}, 4, 5, 2, is_stopped=True)
    collecting.update(0, encode_snapshot(Snapshot(1, copies=copies), [encode_slice(busy())]))
    collecting.update(1, encode_snapshot(Snapshot(2)))
    shown = {
        sample.name: (sample.labels, sample.value)
        for family in export(collecting.facts())
        for sample in family.samples
        if sample.name.startswith("delay_reconcile_")
    }
    assert shown == {
        "delay_reconcile_timestamp_seconds": ({}, 1.5),
        "delay_reconcile_findings": ({"kind": "missing"}, 3),
        "delay_reconcile_records": ({}, 4),
        "delay_reconcile_pending": ({}, 5),
        "delay_reconcile_repairs": ({}, 2),
        "delay_reconcile_stopped": ({}, 1),
    }


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metr", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_a_client_that_sends_no_whole_request_takes_no_connection_for_long(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_S_MAX", 0.2)
    serving = server(hub())
    host, _, port = (serving.serve() or "").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(sent)
        with suppress(ConnectionResetError):
            while client.recv(1_000):
                pass
    serving.close()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets a server's clock forward, and waits until the server has looked at its connections."""
    clock = Mock(return_value=0.0)
    monkeypatch.setattr(http_server, "time", Mock(monotonic=clock))
    monkeypatch.setattr(http_server, "_LOOK_S", 0.01)

    def advance(by_s: float) -> None:
        clock.return_value += by_s
        looks = clock.call_count + 2
        await_true(lambda: clock.call_count >= looks, "the server looks")

    return advance


def test_a_client_that_sends_requests_keeps_its_connection_until_it_has_its_last_answer(
    later: Callable[[float], None],
) -> None:
    large = b"x" * 20_000_000  # more than sockets hold
    serving = HttpServer(Response(large), "metrics", "127.0.0.1:0")
    serving._server.config.timeout_keep_alive = 600  # a limit of uvicorn's own
    client = HTTPConnection(serving.serve() or "", timeout=30)
    for _ in range(3):
        client.request("GET", "/")
        later(10)
        assert len(client.getresponse().read()) == len(large)
    client.request("GET", "/")
    answer = client.getresponse()
    read = 0
    while part := answer.read(4_000_000):
        read += len(part)
        later(10)
    assert read == len(large)
    client.close()
    client.request("GET", "/")
    answer = client.getresponse()
    for _ in range(3):  # now it reads nothing
        later(10)
    with pytest.raises((IncompleteRead, ConnectionResetError)):
        answer.read()
    client.close()
    serving.close()


def test_nothing_listens_when_the_address_is_empty() -> None:
    assert server(hub(), "").serve() is None


def test_an_address_that_is_taken_is_told(served: tuple[MetricsHub, str]) -> None:
    with pytest.raises(DelayServiceError, match=r"metrics\.listen"):
        server(hub(), served[1].removeprefix("http://")).serve()


def test_the_documentation_lists_exactly_what_is_exported() -> None:
    collecting = full_hub()
    exported = set()
    for family in export(collecting.facts()):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        exported.add((family.name + suffix, family.type, frozenset(labels)))
    rows = re.findall(r"^\| `(delay_\w+)` \| (\w+) \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    documented = {
        (name, kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows
    }
    assert documented == exported


def test_the_documentation_names_every_outcome() -> None:
    for name in OUTCOME_NAMES:
        assert f"`{name}`" in DOCS.read_text()


# --- what is paused, on its way from the worker to Prometheus and to people -----------------------


ORDERS = Paused("target", "orders*")
TOPIC = Paused("topic", "delay_topic_any")


def hub_with(pauses: Pauses | None) -> MetricsHub:
    hub = MetricsHub(load(None, ["node.workers=1"], {}))
    hub.update(0, encode_snapshot(Snapshot(1, pauses=pause_facts(pauses))))
    return hub


def since(hub: MetricsHub) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["kind"], sample.labels["name"]): sample.value
        for family in export(hub.facts())
        for sample in family.samples
        if sample.name == "delay_paused_timestamp_seconds"
    }


def counts(hub: MetricsHub) -> dict[str, float]:
    return {
        sample.labels["kind"]: sample.value
        for family in export(hub.facts())
        for sample in family.samples
        if sample.name == "delay_pauses"
    }


def test_a_pause_is_shown_with_its_start_and_reason_on_a_healthy_node() -> None:
    hub = hub_with(Pauses({ORDERS: Pause(2_000, "database move"), TOPIC: Pause(1_000)}))
    assert since(hub) == {("target", "orders*"): 2, ("topic", "delay_topic_any"): 1}
    assert counts(hub) == {"target": 1, "topic": 1}
    status = hub.status()
    assert status.healthy
    assert status.paused == [
        status_model.Pause("topic", "delay_topic_any", 1_000, ""),
        status_model.Pause("target", "orders*", 2_000, "database move"),
    ]


def test_nothing_is_told_while_nothing_is_paused_or_nobody_has_heard() -> None:
    assert since(hub_with(Pauses())) == {}
    assert counts(hub_with(Pauses())) == {"target": 0, "topic": 0}
    assert since(hub_with(None)) == {}
    assert counts(hub_with(None)) == {}
    assert hub_with(None).status().paused == []


def test_the_worker_that_reported_last_speaks_for_all_that_have_heard() -> None:
    time = Clock()
    hub = MetricsHub(load(None, ["node.workers=3"], {}), time)
    said: Iterator[Pauses | None] = iter([Pauses({TOPIC: Pause(1_000)}), Pauses(), None])
    for worker in (2, 1, 0):
        hub.update(worker, encode_snapshot(Snapshot(worker, pauses=pause_facts(next(said)))))
        time.now_s += 1
    assert (since(hub), counts(hub)) == ({}, {"target": 0, "topic": 0})
    hub.update(2, encode_snapshot(Snapshot(2, pauses=pause_facts(Pauses({TOPIC: Pause(1_000)})))))
    assert since(hub) == {("topic", "delay_topic_any"): 1}


def test_series_are_bounded_and_the_longest_pauses_have_one_of_their_own() -> None:
    many = {Paused("target", f"t{n}"): Pause(n * 1_000) for n in range(1, 1_001)}
    hub = hub_with(Pauses(many))
    found = since(hub)
    assert len(found) == PAUSES_TOLD_MAX + 1
    assert found["target", "t1"] == 1
    assert found["other", "other"] == PAUSES_TOLD_MAX + 1
    assert counts(hub) == {"target": 1_000, "topic": 0}
    assert hub.status().paused_others == 1_000 - PAUSES_TOLD_MAX


@pytest.mark.parametrize(
    "name", ["a b", 'x"} 1\n', "\x1b[2J", "\N{REPLACEMENT CHARACTER}", "y" * 250]
)
def test_a_name_that_no_topic_can_have_is_counted_and_never_a_label(name: str) -> None:
    hub = hub_with(Pauses({Paused("target", name): Pause(3_000), ORDERS: Pause(4_000)}))
    assert since(hub) == {("target", "orders*"): 4, ("other", "other"): 3}
    assert hub.status().paused_others == 1


@pytest.mark.parametrize("at_ms", [-(10**40), -1, 10**18, 10**40])
def test_no_time_that_somebody_wrote_stops_a_worker_from_reporting(at_ms: int) -> None:
    hub = hub_with(Pauses({TOPIC: decode_pause(b'{"at_ms": %d}' % at_ms)}))
    (told,) = hub.status().paused
    assert told.at_ms == (0 if at_ms < 0 else 253_402_300_799_999)


def test_a_long_reason_is_cut() -> None:
    (told,) = hub_with(Pauses({TOPIC: Pause(1, "why" * 9_999)})).status().paused
    assert len(told.reason) == 200


# --- audits ---------------------------------------------------------------------------------------


ONE, OTHER = ["delay_topic_any", 0, 0, 8_192], ["delay_topic_any", 1, 0, 8_192]


def hears(*told: dict[str, Any]) -> AuditWatcher:
    watcher = AuditWatcher("delay_audit")
    for said in told:
        watcher.take(None, json.dumps(said).encode())
    return watcher


def audit(at_ms: int, records: int, findings: dict[str, int], *ranges: list[Any]) -> dict[str, Any]:
    facts = {"at_ms": at_ms, "records": records, "findings": findings}
    return {"kind": "summary", **facts, "ranges": ranges}


def test_a_whole_audit_replaces_what_was_found_before() -> None:
    before, of_range = audit(1, 10, {"lost": 2}), audit(2, 3, {"lost": 1}, ONE)
    assert hears(before, of_range, audit(3, 20, {})).newest == AuditFacts(3, 20, {})


def test_audits_of_ranges_add_to_it_and_each_range_counts_once() -> None:
    parts = [audit(1, 10, {"lost": 2}), audit(2, 3, {"lost": 1, "early": 4}, ONE)]
    parts.append(audit(3, 3, {"lost": 5}, OTHER))
    assert hears(*parts).newest == AuditFacts(3, 10, {"lost": 8, "early": 4})
    parts += [audit(4, 3, {"lost": 1}, ONE), audit(5, 3, {}, OTHER)]
    assert hears(*parts).newest == AuditFacts(5, 10, {"lost": 3})
    assert hears(*parts[1:3]).newest == AuditFacts(3, 0, {"lost": 6, "early": 4})


def test_audits_and_comparisons_of_copies_are_heard_from_one_topic() -> None:
    compared = {"kind": "reconcile", "at_ms": 2, "findings": {}, "records": 4, "pending": 5}
    repairs = {"repairs": {"made": 3, "stopped": True, "left": {}, "failed": 0}}
    other = {"kind": "copy_finding", "finding": "missing", "offset": 7}
    told = [{**compared, **repairs}, audit(1, 9, {"lost": 1}), other, {**compared, "at_ms": "soon"}]
    assert hears(*told).newest == AuditFacts(1, 9, {"lost": 1})
    assert hears(*told).copies == ReconcileFacts(2, {}, 4, 5, 3, is_stopped=True)
    assert hears(*told, {**compared, "at_ms": 3}).copies == ReconcileFacts(3, {}, 4, 5)


# --- alerts and dashboard: built on what is exported, explained, and fired in an example ----------


ALERTS = alerts()
EXAMPLES = yaml.safe_load((ROOT / "tests" / "alerts.yml").read_text("utf-8"))
every_alert = pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)


def worker() -> WorkerMetrics:
    metrics = WorkerMetrics(cpu_s=1.0, memory_bytes=2)
    metrics.settled["delivered"] = metrics.rejected["time-missing"] = 1
    metrics.delivered("delay_topic_any", "orders", [1])
    return metrics


def full_hub() -> MetricsHub:
    """A hub that has been told everything there is to tell."""
    state = SliceState(0, state="owner", epoch=1, lag_s=0.0, oldest_due_ms=1_000)
    state.topics = {"delay_topic_any": TopicCounts(3, [1] * 12, {"orders": Waiting(3, 1)})}
    hub = MetricsHub(load(None, ["node.workers=2"], {}))
    pauses = PauseFacts([status_model.Pause("target", "orders*", 1, "")], {"target": 1}, None)
    told = (["a topic is unfit"], 12.0, AuditFacts(1, 2, {"lost": 3}), 4, pauses, 1.0)
    copies = ReconcileFacts(1, {"missing": 3}, 4, 5)
    hub.update(
        0,
        encode_snapshot(Snapshot(1, *told, worker=worker(), copies=copies), [encode_slice(state)]),
    )
    return hub


def families(hub: MetricsHub) -> list[Metric]:
    return list(export(hub.facts()))


def values(hub: MetricsHub, name: str) -> list[float]:
    return [s.value for family in families(hub) for s in family.samples if s.name == name]


@pytest.fixture(scope="module")
def known() -> Labels:
    """Every series that there is: exported, made by Prometheus, and recorded."""
    exported = {"up": FROM_SCRAPING}
    for family in families(full_hub()):
        for sample in family.samples:
            exported[sample.name] = FROM_SCRAPING | set(sample.labels)
    return with_recorded(exported)


# --- the rules ---------------------------------------------------------------------------------


@every_alert
def test_an_alert_uses_exported_series_and_has_a_run_book(alert: Alert, known: Labels) -> None:
    told = " ".join(alert.annotations.values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= Reader(known).labels(alert.expr)
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    url = f"https://delayservice.invalid/docs/operations.md#{alert.name.lower()}"
    assert alert.annotations["runbook_url"] == url
    questions = re.findall(r"^\*\*(\w+\.)\*\*", run_book(alert.name), re.MULTILINE)
    assert questions == ["Look.", "Do."]


def test_the_documentation_lists_the_alerts_as_they_are() -> None:
    page = OPERATIONS.read_text("utf-8")
    rows = re.findall(r"^\| \[`(Delay\w+)`\]\(#(\w+)\) \| (\w+), (.+?) \| ", page, re.MULTILINE)
    listed = [(a.name, a.name.lower(), a.severity, a.after or "at once") for a in ALERTS.values()]
    assert sorted(rows) == sorted(listed)
    anchors = re.findall(r'<a id="(delay\w+)"></a>', page)
    assert sorted(anchors) == sorted(name.lower() for name in ALERTS)
    metrics = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for name, expr in recorded().items():
        assert f"`{name}`" in metrics, expr


def test_outcomes_that_rules_name_exist() -> None:
    named = re.findall(r'outcome="(\w+)"', RULES.read_text("utf-8"))
    assert named
    assert set(named) <= set(OUTCOME_NAMES)


def test_thresholds_agree_with_the_settings_that_they_stand_for() -> None:
    settings, fills = load(None, [], {}), ALERTS["DelayDiskFills"]
    assert f"> {settings.disk.warn_percent / 100}" in fills.expr
    assert f"{settings.disk.stop_percent:.0f} %" in fills.annotations["description"]
    lag_s = re.findall(r"delay_replica_lag_seconds > (\d+)", ALERTS["DelayBehind"].expr)
    assert float(lag_s[0]) > settings.placement.lag_s_max


def test_the_scrape_configuration_names_the_job_that_the_rules_look_for() -> None:
    (job,) = yaml.safe_load(SCRAPING.read_text("utf-8"))["scrape_configs"]
    assert f'job="{job["job_name"]}"' in ALERTS["DelayNodeDown"].expr


def test_every_alert_has_an_example_and_a_test_in_which_a_fault_raises_it() -> None:
    assert list(dict.fromkeys(row["alert"] for row in EXAMPLES)) == list(ALERTS)
    tried = (ROOT / "tests" / "faults" / "test_alerts.py").read_text("utf-8")
    for row in EXAMPLES:
        test, _, why = row["raised_by"].partition(": ")
        assert why or f"def {test}(" in tried, row
        assert why or f'"{row["alert"]}"' in tried, row


def promtool_test(row: dict[str, Any]) -> dict[str, Any]:
    """An example as promtool takes it."""
    expr = f'ALERTS{{alertname="{row["alert"]}", alertstate="firing"}}'
    own = f'severity="{ALERTS[row["alert"]].severity}", job="delayservice"'

    def judged(at: str, firing: list[str]) -> dict[str, Any]:
        known = expr.removesuffix("}")
        found = [{"labels": f"{known}, {own}, {labels}}}", "value": 1} for labels in firing]
        return {"eval_time": at, "expr": expr, "exp_samples": found}

    series = [
        {"series": re.sub("{(?!job=)", '{job="delayservice", ', name), "values": seen}
        for name, seen in row["series"].items()
    ]
    times = [*((at, []) for at in row["quiet"]), *row["fires"].items()]
    return {
        "name": row["alert"],
        "interval": row.get("interval", "15s"),
        "input_series": series,
        "promql_expr_test": [judged(*found) for found in times],
    }


def test_every_alert_is_quiet_and_fires_when_its_examples_say_so(tmp_path: Path) -> None:
    assert all(row["quiet"] and row["fires"] for row in EXAMPLES)
    file = tmp_path / "tests.yml"
    tests = [promtool_test(row) for row in EXAMPLES]
    asked = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": tests}
    file.write_text(yaml.safe_dump(asked), "utf-8")
    command = [program("promtool", "alert-tools"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the dashboard -----------------------------------------------------------------------------


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_a_panel_shows_what_is_exported(panel: dict[str, Any], known: Labels) -> None:
    assert panel["description"]
    for expr, target in zip(queries(panel), panel["targets"], strict=True):
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert legend <= Reader(known).labels(expr)


def test_whatever_is_exported_is_on_the_dashboard(known: Labels) -> None:
    shown = " ".join(
        [*(expr for panel in panels() for expr in queries(panel)), *recorded().values()]
    )
    for name in known:
        base = re.sub(r"_(created|sum|count|bucket)$", "", name)
        assert base in shown, f"{name} is nowhere in {DASHBOARD.name}"


def test_panels_have_a_place_of_their_own() -> None:
    cells = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.parametrize(
    ("expr", "complaint"),
    [
        ("delay_pendin > 1", "nobody exports"),
        ('delay_pending{shard="0"} > 1', "has no label"),
        ("sum by (shard) (delay_pending)", "no label"),
        ("delay_pending - delay_slices", "never match"),
        ("delay_alarm == 1 and on (worker) delay_owned", "no label"),
    ],
)
def test_the_reader_refuses_what_nobody_exports(known: Labels, expr: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        Reader(known).labels(expr)


# --- what was exported for the alerts' sake ------------------------------------------------------


def test_slices_and_problems_are_told_also_where_no_copy_is() -> None:
    hub = MetricsHub(load(None, ["node.workers=2"], {}))
    assert values(hub, "delay_slices") == []
    assert values(hub, "delay_workers_missing") == [2]
    for worker in range(2):
        hub.update(worker, encode_snapshot(Snapshot(worker, ["a is unfit"], slices_there=7)))
    assert values(hub, "delay_slices") == [7]
    assert values(hub, "delay_problems") == [1]
    assert values(hub, "delay_workers_missing") == [0]


def test_a_worker_that_dies_before_it_reports_is_counted() -> None:
    hub = MetricsHub(load(None, ["node.workers=2"], {}))
    assert values(hub, "delay_worker_restarts_total") == [0, 0]
    hub.forget(1)
    hub.forget(1)
    assert values(hub, "delay_worker_restarts_total") == [0, 2]


def test_every_outcome_counts_from_nought() -> None:
    (settled,) = (one for one in families(full_hub()) if one.name == "delay_settled")
    values = {s.labels["outcome"]: s.value for s in settled.samples}
    assert values == {**dict.fromkeys(OUTCOME_NAMES, 0), "delivered": 1}
