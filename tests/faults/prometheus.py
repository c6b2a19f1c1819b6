"""A real Prometheus beside the nodes of a scenario, with the rules of ``deploy`` in a hurry."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from delay_devtools.servers import LOOPBACK, free_ports
from tests.alert_rules import RULES
from tests.integration.bench import await_true

JOB: Final = "delayservice"
_FOR: Final = "2s"
_RANGES: Final = {
    "[1m]": "[10s]",
    "[5m]": "[20s]",
    "[10m]": "[20s]",
    "[15m]": "[60s]",
    "[1h]": "[60s]",
}
"""What the rules look back on, shorter: else each test would take as long as the alert to end."""


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert that fires."""

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]


def _hastened(expr: str) -> str:
    expr = expr.replace("offset 1h", "offset 60s")
    return re.sub(r"\[\d+\w\]", lambda found: _RANGES[found[0]], expr)


def hurried_rules() -> str:
    """Return the rules with shorter waits and ranges, and the same thresholds."""
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _hastened(rule["expr"])
            if "for" in rule:
                rule["for"] = _FOR
    return str(yaml.safe_dump(rules))


class Prometheus:
    """Scrapes ``host:port`` targets each second and evaluates the rules as often.

    Args:
        folder: configuration, data and log go there.
        targets: the nodes.
    """

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        self._folder = folder / "prometheus"
        self._targets = list(targets)
        (port,) = free_ports(1)
        self._address = f"{LOOPBACK}:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start Prometheus, and wait until it answers."""
        self._folder.mkdir()
        (self._folder / "rules.yml").write_text(hurried_rules(), "utf-8")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": JOB, "static_configs": [{"targets": self._targets}]},
            ],
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        await_true(self._is_ready, f"Prometheus is ready; its log is in {self._folder}")
        return self

    def __exit__(self, *_: object) -> None:
        """Stop Prometheus."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{what}", timeout=10) as answer:
            return json.load(answer)["data"]

    def firing(self, name: str = "") -> list[Firing]:
        """Return the alerts that fire, all or those of this name."""
        return [
            Firing(one["labels"]["alertname"], one["labels"], one["annotations"])
            for one in self._ask("alerts")["alerts"]
            if one["state"] == "firing" and name in {"", one["labels"]["alertname"]}
        ]

    def values(self, expr: str) -> list[float]:
        """Return the current values of an expression."""
        found = self._ask("query?" + urllib.parse.urlencode({"query": expr}))["result"]
        return [float(one["value"][1]) for one in found]
