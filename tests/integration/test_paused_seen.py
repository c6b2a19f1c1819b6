"""A pause is seen by whoever is called, and what comes meanwhile waits where the pages say."""

from __future__ import annotations

import time
from typing import Any

import pytest

from delay_devtools.service import ServiceProcess
from delayservice.engine.pauses import Pause, Paused, encode_key, encode_pause
from tests.integration.asked import metrics_of
from tests.integration.bench import Bench, await_true, now_ms

pytestmark = pytest.mark.cluster

RECORDS = 45_000
QUEUE_RECORDS = 20_000
STANDS_STILL_S = 3.0


def write(bench: Bench, paused: Paused, pause: Pause | None) -> None:
    value = None if pause is None else encode_pause(pause)
    bench.producer.produce(bench.pauses, value, encode_key(paused), 0)
    assert bench.producer.flush(30) == 0


def test_a_paused_delay_topic_stores_to_its_bound_and_the_rest_waits(bench: Bench) -> None:
    target = bench.target("one")
    service = bench.serve()
    paused, at_ms = Paused("topic", bench.any), now_ms()
    write(bench, paused, Pause(at_ms, "database move"))
    row = {"kind": "topic", "name": bench.any, "at_ms": at_ms, "reason": "database move", "by": ""}
    await_true(lambda: bench.status(service)["paused"] == [row], "the pause is told")
    assert metrics_of(service, f'delay_paused_timestamp_seconds{{kind="topic",name="{bench.any}"}}')
    await_true(lambda: bench.status(service)["healthy"], "its clock is compared, all is well")

    for number in range(RECORDS):
        bench.send_later(bench.to(target, 0), value=b"%d" % number)
    assert bench.producer.flush(60) == 0
    (held,) = stands_still(bench, service)["slices"]
    assert QUEUE_RECORDS <= held["stored"] < 2 * QUEUE_RECORDS
    assert held["source_lag"] == RECORDS - held["stored"]
    assert held["cursor_age_s"] < STANDS_STILL_S, "there is nothing to commit"
    assert bench.read_all(target) == []

    write(bench, paused, None)
    seen = bench.read(target, RECORDS)
    assert [one.value for one in seen] == [b"%d" % number for number in range(RECORDS)]
    await_true(lambda: bench.status(service)["paused"] == [], "nothing is paused")


def stands_still(bench: Bench, service: ServiceProcess) -> dict[str, Any]:
    """The status, once nothing more was stored for a while although there is more."""
    stood_s, stored = time.monotonic(), -1

    def stands() -> bool:
        nonlocal stood_s, stored
        (now,) = bench.status(service)["slices"]
        if now["stored"] != stored or not now["source_lag"]:
            stood_s, stored = time.monotonic(), now["stored"]
        return time.monotonic() - stood_s > STANDS_STILL_S

    await_true(stands, "storing stands still")
    return bench.status(service)
