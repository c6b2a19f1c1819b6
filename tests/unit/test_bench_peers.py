"""The bench ``peers``: its results, and the pinned versions of other brokers."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from delay_devtools.bench.figures import Figures
from delay_devtools.bench.options import Options
from delay_devtools.bench.peers import run, servers
from delay_devtools.jars import parse_lock
from delayservice.smoke.judge import Verdict
from delayservice.smoke.load import Loaded

OPTIONS = Options("peers", n=100, as_json=True)
LOCK = Path(servers.__file__).with_name("rocketmq.lock")


def results() -> list[Figures]:
    late = Verdict(n=100, early=1, duplicated=3, lateness_ms=Counter({-7: 1, 60: 99}))
    good = Verdict(n=100, lateness_ms=Counter({5: 98, 40: 2}))
    return [
        run.result("this service 1", "a node", "undisturbed", good, Loaded(100, seconds=0.5)),
        run.result("Other 2", "a broker", "killed", late, Loaded(100, seconds=1.0, resent=4)),
    ]


def test_a_result_counts_what_is_wrong_and_that_of_this_service_is_the_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good, wrong = results()
    assert [good[f"lateness_ms_{name}"] for name in ("p50", "p99", "max")] == [5, 40, 40]
    assert (wrong["early"], wrong["early_ms_max"], wrong["duplicated"]) == (1, 7, 3)
    assert (good["sent_per_s"], wrong["resent"]) == (200, 4)
    assert run.show(OPTIONS, results()) == 0
    assert run.show(OPTIONS, [{**wrong, "system": "this service 1"}]) == 1
    shown = json.loads(capsys.readouterr().out.splitlines()[0])
    assert shown["results"] == results()


def test_the_table_has_a_row_for_each_result_and_a_dash_for_what_is_not_counted() -> None:
    console = Console(file=io.StringIO(), width=240, record=True)
    console.print(run.table(results()))
    text = console.export_text()
    assert re.search(r"this service 1 +│ undisturbed .*│ +— ", text)
    assert re.search(r"Other 2 +│ killed .*│ +4 │.*│ +60 / 60 / 60 ", text)


def test_the_versions_are_those_of_the_locks() -> None:
    pinned = {jar.coordinate for jar in parse_lock(LOCK.read_text("utf-8"))}
    for part in ("broker", "namesrv", "client"):
        assert f"org.apache.rocketmq:rocketmq-{part}:{servers.ROCKETMQ}" in pinned
    sums = LOCK.with_name("nats") / "go.sum"
    assert f"nats-server/v2 v{servers.NATS} h1:" in sums.read_text("utf-8")
