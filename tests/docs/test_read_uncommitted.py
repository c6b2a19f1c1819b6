"""A consumer that reads uncommitted sees what docs/guarantees.md says."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integration.bench import Bench, Reader, await_true, now_ms

RECORDS = 300
SPACING_MS = 10
"""Closer than transactions are to each other, so that each has something to deliver."""

pytestmark = pytest.mark.cluster


def sources(reader: Reader) -> Counter[str | None]:
    return Counter(one.header("delay-source") for one in reader.to_end())


def test_it_sees_the_records_of_an_aborted_transaction_again_and_loses_none(bench: Bench) -> None:
    target = bench.target("orders")
    # Dies with its outputs at the broker and the transaction open, when it delivers all the time.
    service = bench.serve("node.workers=1", fault="flushed:kill:5")
    first_due_ms = now_ms() + 1_500
    for number in range(RECORDS):
        due_ms = first_due_ms + number * SPACING_MS
        bench.send_later([("delay-at", str(due_ms)), ("delay-target-topic", target)])
    bench.producer.flush()
    await_true(lambda: service.events("worker_died"), "the worker dies")
    service.kill()
    service = bench.serve()
    assert len(bench.read(target, RECORDS)) == RECORDS
    assert service.stop() == 0

    with (
        Reader(bench.bootstrap, [target]) as committed,
        Reader(bench.bootstrap, [target], "read_uncommitted") as uncommitted,
    ):
        once, seen = sources(committed), sources(uncommitted)
        assert set(once.values()) == {1}
        assert len(once) == RECORDS
        assert once.keys() == seen.keys()  # what is doubled has the same identity
        assert any(count > 1 for count in seen.values())
        for one in uncommitted.seen:
            assert one.timestamp_ms >= int(one.header("delay-due-at") or 0)
