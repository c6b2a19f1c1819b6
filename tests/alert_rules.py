"""The files of ``deploy`` for Prometheus and Grafana, as tests look at them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import promql_parser as promql
import yaml

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "deploy" / "prometheus" / "delayservice.rules.yml"
SCRAPING: Final = RULES.with_name("prometheus.yml")
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "delayservice.json"
OPERATIONS: Final = ROOT / "docs" / "operations.md"
FROM_SCRAPING: Final = frozenset({"job", "instance"})
"""Labels that Prometheus gives whatever it scrapes."""

Labels: TypeAlias = Mapping[str, frozenset[str]]
"""The labels of each series, by its name."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule; ``after`` is its ``for``, empty where it fires at once."""

    name: str
    expr: str
    after: str
    severity: str
    annotations: Mapping[str, str]


def run_book(alert: str) -> str:
    """The run-book of an alert: one of the operations page, which several alerts may share."""
    page = OPERATIONS.read_text("utf-8")
    return page.partition(f'<a id="{alert.lower()}"></a>')[2].partition("\n##")[0]


def tool_missing(program: str) -> str:
    """Why a program of Prometheus can't be asked here; empty when it can."""
    return "" if shutil.which(program) else f"needs {program}: make alert-tools"


def _rules() -> Iterator[Mapping[str, Any]]:
    for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"]:
        yield from group["rules"]


def recorded() -> dict[str, str]:
    """The expressions of the recording rules, by the series that they make."""
    return {rule["record"]: rule["expr"] for rule in _rules() if "record" in rule}


def alerts() -> dict[str, Alert]:
    """The alerting rules by name, in their order."""
    return {
        rule["alert"]: Alert(
            rule["alert"],
            rule["expr"],
            rule.get("for", ""),
            rule["labels"]["severity"],
            rule["annotations"],
        )
        for rule in _rules()
        if "alert" in rule
    }


def panels() -> list[Mapping[str, Any]]:
    """The panels of the dashboard, rows left out."""
    found: list[Mapping[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries(panel: Mapping[str, Any]) -> list[str]:
    """Return the queries of a panel, with Grafana's own variables replaced."""
    exprs = [str(target["expr"]) for target in panel["targets"]]
    return [re.sub(r"\$__\w+", "1m", expr) for expr in exprs]


class Reader:
    """Says which labels an expression's result bears, and refuses what is not exported.

    Args:
        exported: the labels of every series that there is.
    """

    def __init__(self, exported: Labels) -> None:
        self._exported = exported

    def labels(self, expr: str) -> frozenset[str]:
        """The labels of what an expression gives.

        Raises:
            AssertionError: it names a series or a label that nobody exports.
            ValueError: it is no PromQL.
        """
        return self._of(promql.parse(expr))

    def _of(self, node: promql.Expr) -> frozenset[str]:
        match node:
            case promql.VectorSelector():
                labels = self._series(node)
            case promql.MatrixSelector():
                labels = self._series(node.vector_selector)
            case promql.AggregateExpr():
                labels = self._aggregate(node)
            case promql.BinaryExpr():
                labels = self._binary(node)
            case promql.Call():
                labels = max(map(self._of, node.args), key=len, default=frozenset())
                labels -= {"le"} if node.func.name == "histogram_quantile" else frozenset()
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                labels = self._of(node.expr)
            case _:  # a number or a text
                labels = frozenset()
        return labels

    def _series(self, node: promql.VectorSelector) -> frozenset[str]:
        name = node.name or ""
        assert name in self._exported, f"nobody exports {name}"
        labels = self._exported[name]
        asked = {matcher.name for matcher in node.matchers.matchers}
        assert asked <= labels, f"{name} has no label {sorted(asked - labels)}"
        return labels

    def _aggregate(self, node: promql.AggregateExpr) -> frozenset[str]:
        labels = self._of(node.expr)
        if node.modifier is None:
            return frozenset()
        asked = frozenset(node.modifier.labels)
        assert asked <= labels, f"{node}: no label {sorted(asked - labels)}"
        return asked if node.modifier.type == promql.AggModifierType.By else labels - asked

    def _binary(self, node: promql.BinaryExpr) -> frozenset[str]:
        left, right = self._of(node.lhs), self._of(node.rhs)
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None:
            asked = frozenset(matching.labels)
            assert asked <= left & right, f"{node}: no label {sorted(asked - (left & right))}"
        elif left and right:
            assert left == right, f"{node}: {sorted(left)} never match {sorted(right)}"
        return left or right


def with_recorded(exported: Labels) -> Labels:
    """What is exported and what the recording rules make of it, each of what was there before."""
    known = dict(exported)
    for name, expr in recorded().items():
        known[name] = Reader(known).labels(expr)
    return known
