"""A peak: very many records due at the same instant."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil
import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.integration.bench import Bench, Reader, await_true, now_ms

RECORDS = int(os.environ.get("PEAK_RECORDS", "200000"))
"""``PEAK_RECORDS=1000000 make test ARGS="-k due_at_once"`` is the long form."""
SEND_PER_S_MIN = 20_000
PEAK_PER_S_MIN = 4_000
RSS_BYTES_MAX = 1 << 30
PARTITIONS = 4


class RssPeak:
    """The most memory that the service's workers have held together, sampled meanwhile."""

    def __init__(self, service: ServiceProcess) -> None:
        self.bytes = 0
        self._service = service
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="rss")

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        workers = self._service.workers()
        while not self._done.wait(0.2):
            try:
                held = sum(worker.memory_info().rss for worker in workers)
            except psutil.NoSuchProcess:
                continue
            self.bytes = max(self.bytes, held)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_records_that_are_all_due_at_once_arrive_once_and_fit_in_memory(
    cluster: EmbeddedCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS) as bench:
        target = bench.target("peak", PARTITIONS)
        service = bench.serve()
        due_ms = now_ms() + 3_000 + RECORDS * 1_000 // SEND_PER_S_MIN
        headers = [("delay-at", str(due_ms)), ("delay-target-topic", target)]
        with RssPeak(service) as rss, bench.reader(target) as reader:
            _send(bench, headers)
            last_sent_ms = now_ms()
            seen = _await_all(reader)
        took_s = (max(last for last, _ in seen) - max(due_ms, last_sent_ms)) / 1_000
        assert sorted(number for _, number in seen) == list(range(RECORDS))
        assert min(at for at, _ in seen) >= due_ms
        record_property("seconds", took_s)
        record_property("rss_mib", rss.bytes >> 20)
        print(f"{RECORDS} in {took_s:.1f} s, RSS {rss.bytes >> 20} MiB")  # noqa: T201  # for -s
        assert rss.bytes < RSS_BYTES_MAX
        assert took_s < 10 + RECORDS / PEAK_PER_S_MIN
        assert service.stop() == 0
        with bench.reader(target) as again:
            assert len(again.to_end()) == RECORDS
        assert service.events("worker_died") == []


def _send(bench: Bench, headers: list[tuple[str, str]]) -> None:
    filler = b"." * 90
    produce = bench.producer.produce
    for number in range(RECORDS):
        while True:
            try:
                produce(
                    bench.any,
                    b"%d " % number + filler,
                    partition=number % PARTITIONS,
                    headers=list(headers),
                )
                break
            except BufferError:
                bench.producer.poll(0.05)
    assert bench.producer.flush(120) == 0


def _await_all(reader: Reader) -> list[tuple[int, int]]:
    """``(timestamp_ms, number)`` of all; objects of every record would be more than is needed."""
    found: list[tuple[int, int]] = []

    def complete() -> bool:
        reader.take(0.2)
        found.extend(
            (one.timestamp_ms, int((one.value or b"").partition(b" ")[0])) for one in reader.seen
        )
        reader.seen.clear()
        return len(found) >= RECORDS

    await_true(complete, "every record arrived", 60 + RECORDS / PEAK_PER_S_MIN)
    return found
