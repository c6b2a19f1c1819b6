"""A peak: very many records due at the same instant."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from delay_devtools.bench.sampling import Sampler
from delay_devtools.cluster import EmbeddedCluster
from delayservice.smoke.helper import Helper
from delayservice.smoke.judge import JudgePlan, Verdict, counts, judge
from delayservice.smoke.load import Batch, Loaded, LoadPlan, load
from tests.integration.bench import Bench, await_true, now_ms

RECORDS = int(os.environ.get("PEAK_RECORDS", "200000"))
"""``PEAK_RECORDS=1000000 make test ARGS="-k due_at_once"`` is the long form."""
SEND_PER_S_MIN = 20_000
PEAK_PER_S_MIN = 4_000
RSS_MIB_MAX = 1 << 10
PARTITIONS = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_records_that_are_all_due_at_once_arrive_once_and_fit_in_memory(
    cluster: EmbeddedCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    client = {"bootstrap.servers": cluster.bootstrap}
    batch = Batch(b"the-peak", RECORDS, 100, 7)
    with Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS) as bench:
        targets = (bench.target("peak", PARTITIONS),)
        service = bench.serve()
        due_ms = now_ms() + 3_000 + RECORDS * 1_000 // SEND_PER_S_MIN
        with (
            Sampler(service.workers(), 0.2) as sampler,
            Helper(judge, JudgePlan(client, targets, batch)) as judging,
            Helper(load, LoadPlan(client, bench.any, targets, batch, due_ms)) as loading,
        ):
            loading.tell()
            loaded = loading.expect(Loaded)
            last_sent_ms = now_ms()
            limit_s = 60 + RECORDS / PEAK_PER_S_MIN
            await_true(lambda: judging.count == RECORDS, "every record arrived", limit_s)
            rss_mib = sampler.rss_mib_peak
            assert service.stop() == 0
            judging.tell(loaded)
            verdict = judging.expect(Verdict)
        took_s = verdict.last_seen_s - max(due_ms, last_sent_ms) / 1_000
        assert verdict.is_good, counts(verdict)
        record_property("seconds", took_s)
        record_property("rss_mib", rss_mib)
        print(f"{RECORDS} in {took_s:.1f} s, RSS {rss_mib:.0f} MiB")  # noqa: T201  # for -s
        assert rss_mib < RSS_MIB_MAX
        assert took_s < 10 + RECORDS / PEAK_PER_S_MIN
        assert service.events("worker_died") == []
