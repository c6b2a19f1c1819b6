"""The bench ``peers``: its results, and the pinned versions of other brokers."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from delay_devtools.bench.peers import run, servers
from delay_devtools.bench.tally import BenchVerdict
from delay_devtools.jars import parse_lock

LOCK = Path(servers.__file__).with_name("rocketmq.lock")


def verdict(lateness_ms: dict[int, int], *, duplicated: int = 0) -> BenchVerdict:
    return BenchVerdict(
        n=sum(lateness_ms.values()),
        seen=sum(lateness_ms.values()),
        lost=0,
        duplicated=duplicated,
        early=sum(count for late, count in lateness_ms.items() if late < 0),
        altered=0,
        strangers=0,
        last_seen_s=2.0,
        lateness_ms=lateness_ms,
    )


def results() -> list[run.Result]:
    good = run.Result("this service 1", "a node", "undisturbed", verdict({5: 98, 40: 2}), 200.4)
    late = verdict({-7: 1, 60: 99}, duplicated=3)
    return [good, run.Result("Other 2", "a broker", "killed", late, 99.6, resent=4, restart_s=1.5)]


def test_a_result_counts_what_is_wrong_and_how_late_it_was() -> None:
    good, bad = results()
    assert (good.is_good, bad.is_good) == (True, False)
    late, wrong = run.as_object(good), run.as_object(bad)
    assert [late[f"lateness_ms_{name}"] for name in ("p50", "p99", "max")] == [5, 40, 40]
    assert (wrong["early"], wrong["early_ms_max"], wrong["duplicated"]) == (1, 7, 3)


def test_json_has_all_but_the_histogram() -> None:
    found = run.as_object(results()[1])
    assert "lateness_ms" not in found
    assert (found["system"], found["resent"], found["restart_s"]) == ("Other 2", 4, 1.5)
    assert found["sent_per_s"] == 100


def test_the_table_has_a_row_for_each_result_and_a_dash_for_what_is_not_counted() -> None:
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(run.table(results()))
    text = console.export_text()
    assert re.search(r"this service 1 +│ undisturbed .*│ +— ", text)
    assert re.search(r"Other 2 +│ killed .*│ +4 │ +60 ", text)


def test_the_versions_are_those_of_the_locks() -> None:
    pinned = {jar.coordinate for jar in parse_lock(LOCK.read_text("utf-8"))}
    version = servers.rocketmq_version()
    for part in ("broker", "namesrv", "client"):
        assert f"org.apache.rocketmq:rocketmq-{part}:{version}" in pinned
    sums = LOCK.with_name("nats") / "go.sum"
    assert f"nats-server/v2 v{servers.nats_version()} h1:" in sums.read_text("utf-8")
