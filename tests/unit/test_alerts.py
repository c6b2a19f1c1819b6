"""Alerts and dashboard: built on what is exported, explained, and fired in an example."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from delayservice.config.settings import load
from delayservice.engine.census import TopicCounts, Waiting
from delayservice.engine.outcome import OUTCOME_NAMES
from delayservice.metrics.counts import AuditFacts, ReconcileFacts, WorkerMetrics
from delayservice.metrics.families import export
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_slice, encode_snapshot
from delayservice.metrics.status import Pause, PauseFacts, SliceState
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
from tests.needs import program

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
