"""A target that does not exist shows: in status, metrics and on the page, until its records go."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stubs don't re-export

from tests.integration.asked import Asked, metrics_of
from tests.integration.bench import Bench, await_true

pytestmark = pytest.mark.cluster

MISSING = 30
CANCELLED = 5


@pytest.mark.parametrize("store", ["wheel", "rocksdb"])
def test_records_for_a_missing_target_are_seen_and_cancelled_ones_are_not_pending(
    bench: Bench, store: str
) -> None:
    target, missing = bench.target("one"), f"to_{bench.run}_is_not_there"
    delays = ",".join(["3s"] * 40)
    service = bench.serve(f"node.store={store}", f"delivery.park_delays_ms={delays}")

    def states() -> dict[str, dict[str, Any]]:
        return {one["target"]: one for one in bench.status(service)["targets"]}

    for number in range(2 * CANCELLED):
        headers = [*bench.to(target, 600_000), ("delay-id", b"id-%d" % number)]
        bench.send_later(headers, value=b"%d" % number)
    for _ in range(MISSING):
        bench.send_later(bench.to(missing, 0), value=b"v")
    assert bench.producer.flush(30) == 0
    await_true(lambda: states().get(missing, {}).get("parked") == MISSING, "it is parked")
    for number in range(CANCELLED):
        headers = [("delay-id", b"id-%d" % number), ("delay-op", b"cancel")]
        bench.send_later(headers, value=None)
    assert bench.producer.flush(30) == 0
    await_true(lambda: states()[target]["pending"] == CANCELLED, "the others still wait")
    await_true(
        lambda: (
            sum(one["pending"] for one in bench.status(service)["slices"]) == CANCELLED + MISSING
        ),
        "what is cancelled is not pending",
    )
    shown = f'delay_target_parked{{target="{missing}",topic="{bench.any}"}} {MISSING:.1f}'
    await_true(lambda: shown in metrics_of(service), "the metric tells")
    finding = f"{MISSING} records of {bench.any} for target {missing} are parked."

    def page_tells() -> bool:  # not while the copies of a new try are read back
        page = Asked(service).raw("GET", "/").text
        return finding in page and "<strong>Healthy." not in page

    await_true(page_tells, "the page tells")

    bench.admin.create_topics([NewTopic(missing, 1, 1)])[missing].result(30)
    assert len(bench.read(missing, MISSING)) == MISSING
    await_true(lambda: states().get(missing, {"parked": 0})["parked"] == 0, "nothing is parked")
    counted = f'delay_apart_lateness_seconds_count{{kind="resumed"}} {MISSING:.1f}'
    await_true(lambda: counted in metrics_of(service), "it is counted apart")
