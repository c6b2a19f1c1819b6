"""The service under test: its processes, and its counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families

from delay_devtools.ports import ANY_PORTS
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import DelayServiceError

_ASK_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.2
_STALL_S: Final = 60.0
_NAMES: Final = {
    "delay_ingested_total": "ingested",
    "delay_settled_total": "settled",
    "delay_transaction_seconds_count": "transactions",
    "delay_transaction_aborts_total": "aborts",
    "delay_pending": "pending",
}


@dataclass(slots=True)
class ServiceCounters:
    """Sums of the service's counters over all slices, up to two seconds old."""

    ingested: int = 0
    settled: int = 0
    transactions: int = 0
    aborts: int = 0
    pending: int = 0

    def __sub__(self, before: ServiceCounters) -> ServiceCounters:
        # pending is a gauge and stays as it is.
        return ServiceCounters(
            self.ingested - before.ingested,
            self.settled - before.settled,
            self.transactions - before.transactions,
            self.aborts - before.aborts,
            self.pending,
        )


class Serving:
    """Service under test (one node), started by the constructor."""

    def __init__(self, sets: Sequence[str], folder: Path, slices: int) -> None:
        self.state_dir = folder / "state"
        self._sets = [*sets, f"node.state_dir={self.state_dir}", *ANY_PORTS]
        self._log_path = folder / "service.log"
        self._slices = slices
        self._process = ServiceProcess(self._sets, self._log_path)
        self._url = ""
        self.workers: list[psutil.Process] = []
        self.processes: list[psutil.Process] = []

    def await_serving(self) -> None:
        self._process.wait_serving(self._slices)
        self._url = f"http://{self._process.events('metrics_served')[-1]['url']}/metrics"
        self.workers = self._process.workers()
        self.processes = self._process.processes()

    def restart_killed(self) -> float:
        self._process.kill()
        started_s = time.time()
        self._process = ServiceProcess(self._sets, self._log_path)
        return started_s

    def counters(self) -> ServiceCounters:
        try:
            with urlopen(self._url, timeout=_ASK_TIMEOUT_S) as answer:  # noqa: S310 (our own http)
                text = answer.read().decode()
        except (URLError, OSError) as exc:
            raise DelayServiceError(
                f"the service does not answer on {self._url} any more: {exc}; the end of its log "
                f"says why:\n{self._process.log_tail()}"
            ) from exc
        found = ServiceCounters()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = _NAMES.get(sample.name)
                if name is not None:
                    setattr(found, name, getattr(found, name) + int(sample.value))
        return found

    def await_count(
        self, name: str, count: int, progress: Callable[[int], None] = lambda _: None
    ) -> ServiceCounters:
        moved_s, before = time.monotonic(), -1
        while True:
            counters = self.counters()
            now = getattr(counters, name)
            progress(min(now, count))
            if now >= count:
                return counters
            if now != before:
                moved_s, before = time.monotonic(), now
            elif time.monotonic() - moved_s > _STALL_S:
                raise DelayServiceError(
                    f"the service has {name} {now} of {count} records and stands still; the end of "
                    f"its log says why:\n{self._process.log_tail()}"
                )
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self._process.kill()
