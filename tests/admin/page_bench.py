"""How fast page and API are with a million pending records, and what that costs deliveries.

    python -m tests.admin.page_bench --spread-h 1.5
    python -m tests.admin.page_bench --spread-h 24

One broker, one node, a real Chromium; about a thousand records a second are delivered meanwhile.
It prints one JSON object. It is no test: it takes minutes and wants the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from confluent_kafka import Producer

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import free_ports
from tests.admin.browser import Browser, chromium
from tests.integration.bench import Bench, Reader, await_true, now_ms

PARTITIONS: Final = 4
RARE_EVERY: Final = 100
EMPTY: Final = "data:text/html,empty"
"""What a browser that has just started paints first: its own time, not the page's."""
RATE: Final = 1_000
FIRST_DUE_MS: Final = 1_800_000
STORED_WITHIN_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is pending: ``records`` with ids, due evenly in ``[first_ms, first_ms + spread_ms)``."""

    records: int
    first_ms: int
    spread_ms: int
    common: str
    rare: str

    def write(self, bootstrap: str, topic: str) -> None:
        """Write all of it."""
        options = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
        }
        producer = Producer(options)
        dues = random.Random(1)
        value = b"v" * 100
        for number in range(self.records):
            target = self.common if number % RARE_EVERY else self.rare
            headers: list[tuple[str, str | bytes | None]] = [
                ("delay-at", b"%d" % (self.first_ms + dues.randrange(self.spread_ms))),
                ("delay-target-topic", target.encode()),
                ("delay-id", b"id-%d" % number),
            ]
            while True:
                try:
                    producer.produce(topic, value, None, number % PARTITIONS, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1_000 == 0:
                producer.poll(0)
        left = producer.flush(120)
        if left:
            raise TimeoutError(f"{left} records were not written within 120 s")


class Traffic:
    """A thousand deliveries a second, and how late each is.

    Args:
        bench: the node's.
        target: theirs alone.
    """

    def __init__(self, bench: Bench, target: str) -> None:
        self._bench = bench
        self._target = target
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        started_s = time.monotonic()
        while not self._stopping.wait(0.02):
            wanted = int((time.monotonic() - started_s) * RATE)
            while number < wanted:
                headers = self._bench.to(self._target, 2_000 + number % 3_000)
                self._bench.send_later(headers, partition=number % PARTITIONS)
                number += 1

    def stop(self) -> None:
        """Write no more."""
        self._stopping.set()
        self._thread.join()

    def lateness_ms(self, phases: dict[str, tuple[int, int]]) -> dict[str, dict[str, float]]:
        """Quantiles of what was due within each phase, ``(start_ms, stop_ms)``."""
        found: dict[str, list[float]] = {name: [] for name in phases}
        with Reader(self._bench.bootstrap, [self._target]) as reader:
            for seen in reader.to_end():
                due_ms = int(seen.header("delay-due-at") or 0)
                for name, (start_ms, stop_ms) in phases.items():
                    if start_ms <= due_ms < stop_ms:
                        found[name].append(seen.timestamp_ms - due_ms)
        return {name: quantiles(late) for name, late in found.items()}


def quantiles(found: list[float]) -> dict[str, float]:
    """Count, median, 99th percentile and maximum."""
    ranked = sorted(found)
    if not ranked:
        return {"n": 0}
    at = {"p50": len(ranked) // 2, "p99": min(len(ranked) * 99 // 100, len(ranked) - 1)}
    return {
        "n": len(ranked),
        **{name: round(ranked[index], 1) for name, index in at.items()},
        "max": round(ranked[-1], 1),
    }


def asked(url: str) -> bytes:
    """An answer; one that is a refusal ends the run with what it says."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310  # our own node
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as exc:
        raise RuntimeError(f"{url}: {exc.code} {exc.read().decode()}") from exc


def pending(url: str) -> int:
    """Records that the node has stored and not settled."""
    return sum(slice_["pending"] for slice_ in json.loads(asked(f"{url}/v1/node"))["slices"])


def searches(url: str, load: Load, requests: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each kind of request."""
    rng = random.Random(2)

    def window() -> int:
        return load.first_ms + rng.randrange(load.spread_ms - 10_000)

    kinds: dict[str, Callable[[], str]] = {
        "by_id": lambda: f"/v1/records?id=id-{rng.randrange(load.records)}",
        "by_due_range": lambda: f"/v1/pending?from={(w := window())}&to={w + 10_000}",
        "by_target_common": lambda: f"/v1/pending?target={quote(load.common)}&from={window()}",
        "by_target_rare": lambda: f"/v1/pending?target={quote(load.rare)}&from={window()}",
        "horizon": lambda: "/v1/pending/horizon",
        "page_overview": lambda: "/",
        "page_search": lambda: f"/pending?from={(w := window())}&to={w + 10_000}",
    }
    found = {}
    for name, path in kinds.items():
        taken = []
        for _ in range(requests):
            began_s = time.perf_counter()
            asked(url + path())
            taken.append((time.perf_counter() - began_s) * 1_000)
        found[name] = quantiles(taken)
    return found


def first_paint_ms(browser: Browser, url: str) -> float:
    """First contentful paint of a page that is loaded now, as Chromium measures it."""
    browser.open(url)
    paints = "return performance.getEntriesByName('first-contentful-paint')"
    browser.await_true(lambda: browser.run(paints), "a first paint", 60)
    return float(browser.run(paints)[0]["startTime"])


def paints(url: str, loads: int) -> dict[str, dict[str, float]]:
    """Of browsers that have shown an empty page so far, and of one that has been here before."""
    cold: dict[str, list[float]] = {EMPTY: [], "/": [], "/pending": []}
    warm: dict[str, list[float]] = {"/": [], "/pending": []}
    for _ in range(max(loads // 2, 2)):
        for path in ("/", "/pending"):
            with chromium() as browser:
                cold[EMPTY].append(first_paint_ms(browser, EMPTY))
                cold[path].append(first_paint_ms(browser, url + path))
    with chromium() as browser:
        for path, taken in warm.items():
            browser.open(url + path)
            taken.extend(first_paint_ms(browser, url + path) for _ in range(loads))
    return {
        f"{name} {path}": quantiles(taken)
        for name, paths in (("cold", cold), ("warm", warm))
        for path, taken in paths.items()
    }


def phase(seconds: float) -> tuple[int, int]:
    """Let time pass."""
    start_ms = now_ms()
    threading.Event().wait(seconds)
    return start_ms, now_ms()


def run(options: argparse.Namespace) -> dict[str, object]:
    """Everything, one after the other."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, EmbeddedCluster(1, 0) as cluster:
        sets = [f"admin.listen=127.0.0.1:{port}", f"node.store={options.store}"]
        with Bench(cluster.bootstrap, Path(folder), partitions=PARTITIONS, sets=sets) as bench:
            targets = [bench.target(name, 4) for name in ("common", "rare", "traffic")]
            bench.serve()
            spread_ms = int(options.spread_h * 3_600_000)
            load = Load(options.records, now_ms() + FIRST_DUE_MS, spread_ms, *targets[:2])
            started_s = time.monotonic()
            load.write(cluster.bootstrap, bench.any)
            say(f"written in {time.monotonic() - started_s:.0f} s")
            await_true(
                lambda: pending(url) >= options.records,
                "all records are pending",
                STORED_WITHIN_S,
            )
            say(f"stored in {time.monotonic() - started_s:.0f} s")
            return measured(url, bench, load, targets[2], options)


def measured(
    url: str, bench: Bench, load: Load, target: str, options: argparse.Namespace
) -> dict[str, object]:
    """The figures, with everything in place."""
    traffic = Traffic(bench, target)
    phase(10)
    phases = {"without_page": phase(options.seconds)}
    with chromium() as browser:
        browser.open(url + "/")
        phases["with_page"] = phase(options.seconds)
        complaints = browser.complaints()
    phases["without_page_again"] = phase(options.seconds)
    say("lateness is measured")
    start_ms = now_ms()
    found = searches(url, load, options.requests)
    phases["with_searches"] = start_ms, now_ms()
    say("searches are measured")
    painted = paints(url, options.loads)
    waiting = pending(url)
    traffic.stop()
    assert now_ms() < load.first_ms, "the load fell due before the end: the machine is too slow"
    bench.producer.flush(30)
    phase(6)
    return {
        "pending": waiting,
        "spread_h": options.spread_h,
        "store": options.store,
        "first_paint_ms": painted,
        "request_ms": found,
        "lateness_ms": traffic.lateness_ms(phases),
        "console": complaints,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # progress


def main() -> None:
    """Run it as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--spread-h", type=float, default=1.5)
    parser.add_argument("--store", choices=("wheel", "rocksdb", "memory"), default="wheel")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--loads", type=int, default=20)
    print(json.dumps(run(parser.parse_args()), indent=1))  # noqa: T201  # its result


if __name__ == "__main__":
    main()
