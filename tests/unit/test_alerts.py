"""Alerts and dashboard: built on what is exported, explained, and fired in an example."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import promql_parser as promql
import pytest
import yaml
from prometheus_client.core import Metric

from delayservice.config.settings import load
from delayservice.engine.census import TopicCounts, Waiting
from delayservice.engine.outcome import OUTCOME_NAMES
from delayservice.metrics.counts import (
    AuditFacts,
    ReconcileFacts,
    WorkerMetrics,
)
from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_slice, encode_snapshot
from delayservice.metrics.status import Pause, PauseFacts, SliceState
from tests.alert_rules import (
    DASHBOARD,
    EXAMPLES,
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
from tests.needs import program

ALERTS = alerts()
EXPLAINED = OPERATIONS.read_text("utf-8")
NOT_RAISED = {"DelayEarly"}
"""By its own clock no service delivers early, so no fault of a test raises it."""
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


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
    pauses = PauseFacts([Pause("target", "orders*", 1, "")], {"target": 1}, None)
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
def test_an_alert_is_built_on_what_is_exported(alert: Alert, known: Labels) -> None:
    labels = Reader(known).labels(alert.expr)
    told = " ".join(alert.annotations.values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= labels


@every_alert
def test_an_alert_says_how_bad_it_is_what_happened_and_where_to_read_on(alert: Alert) -> None:
    assert alert.severity in {"critical", "warning"}
    assert set(alert.annotations) == {"summary", "description", "runbook", "runbook_url"}
    url = f"https://delayservice.invalid/{alert.annotations['runbook']}"
    assert alert.annotations["runbook_url"] == url
    path, _, anchor = alert.annotations["runbook"].partition("#")
    assert (ROOT / path).read_bytes() == OPERATIONS.read_bytes()
    assert anchor == alert.name.lower()


def test_every_alert_has_a_run_book_and_every_run_book_an_alert() -> None:
    anchors = re.findall(r'<a id="(delay\w+)"></a>', EXPLAINED)
    assert sorted(anchors) == sorted(alert.name.lower() for alert in ALERTS)


@every_alert
def test_a_run_book_says_all_that_is_asked_at_night(alert: Alert) -> None:
    text = run_book(alert.name)
    assert f"`{alert.name}`" in text
    questions = re.findall(r"^\*\*(\w+\.)\*\*", text, re.MULTILINE)
    assert questions == ["Means.", "Look.", "Do."]


def test_the_documentation_lists_the_alerts_as_they_are() -> None:
    rows = re.findall(r"^- `(Delay\w+)` \((\w+), (.+?)\): ", EXPLAINED, re.MULTILINE)
    assert sorted(rows) == sorted((a.name, a.severity, a.after or "at once") for a in ALERTS)
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for name, expr in recorded().items():
        assert f"`{name}`" in page, expr


def test_outcomes_that_rules_name_exist() -> None:
    named = re.findall(r'outcome="(\w+)"', RULES.read_text("utf-8"))
    assert named
    assert set(named) <= set(OUTCOME_NAMES)


def threshold(name: str) -> float:
    """The number that an alert's expression compares with."""
    (expr,) = (alert.expr for alert in ALERTS if alert.name == name)
    return float(re.findall(r" > ([\d.]+)", expr)[-1])


def test_thresholds_agree_with_the_settings_that_they_stand_for() -> None:
    settings = load(None, [], {})
    assert threshold("DelayDiskFills") * 100 == settings.disk.warn_percent
    assert threshold("DelayReplicaLag") > settings.placement.lag_s_max
    (fills,) = (alert for alert in ALERTS if alert.name == "DelayDiskFills")
    assert f"{settings.disk.stop_percent:.0f} %" in fills.annotations["description"]


def test_the_scrape_configuration_names_the_job_that_the_rules_look_for() -> None:
    (job,) = yaml.safe_load(SCRAPING.read_text("utf-8"))["scrape_configs"]
    (down,) = (alert for alert in ALERTS if alert.name == "DelayNodeDown")
    assert f'job="{job["job_name"]}"' in down.expr


def test_every_alert_has_an_example_in_which_it_fires() -> None:
    tests = yaml.safe_load(EXAMPLES.read_text("utf-8"))["tests"]
    fired = [
        test["name"]
        for test in tests
        if any(expected["exp_samples"] for expected in test["promql_expr_test"])
        and any(not expected["exp_samples"] for expected in test["promql_expr_test"])
    ]
    assert fired == [alert.name for alert in ALERTS]


def test_every_alert_is_raised_by_a_real_fault() -> None:
    tried = (ROOT / "tests" / "faults" / "test_alerts.py").read_text("utf-8")
    raised = set(re.findall(r'fires\("(\w+)"', tried))
    assert raised == {alert.name for alert in ALERTS} - NOT_RAISED


@pytest.mark.parametrize(
    "command", [("check", "rules", RULES), ("test", "rules", EXAMPLES)], ids=["check", "test"]
)
def test_promtool_agrees_with_rules_and_examples(command: tuple[str, str, Path]) -> None:
    words = [program("promtool", "alert-tools"), *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the dashboard -----------------------------------------------------------------------------


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_a_panel_shows_what_is_exported(panel: dict[str, object], known: Labels) -> None:
    assert panel["description"]
    for expr in queries(panel):
        Reader(known).labels(expr)


def test_legends_name_labels_that_are_there(known: Labels) -> None:
    for panel in panels():
        legends = [target["legendFormat"] for target in panel["targets"]]
        for expr, legend in zip(queries(panel), legends, strict=True):
            assert set(re.findall(r"{{(\w+)}}", legend)) <= Reader(known).labels(expr), legend


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


# --- what was exported for the alerts' sake ------------------------------------------------------


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


def test_the_reader_refuses_what_is_no_promql(known: Labels) -> None:
    with pytest.raises(ValueError, match=r"."):
        Reader(known).labels("sum by delay_pending >")


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
    settled = [
        s
        for family in families(full_hub())
        for s in family.samples
        if s.name == "delay_settled_total"
    ]
    assert {s.labels["outcome"] for s in settled} == set(OUTCOME_NAMES)
    assert sum(s.value for s in settled) == 1


def test_every_expression_is_promql() -> None:
    for expr in (*recorded().values(), *(alert.expr for alert in ALERTS)):
        promql.parse(expr)
