"""The admin API under thousands of made-up requests, and what they cost deliveries.

    python -m tests.integration.fuzz_api --requests 10000

One broker, one node, some 500 records due each second. schemathesis asks whatever the API's own
description allows and forbids, until so many requests were made; a consumer measures how late
records arrive before, meanwhile and afterwards. It prints one JSON object, and ends with status 1
if anything was answered other than described, or with a 5xx. It is no test: it takes minutes and
wants the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from delay_devtools.cluster import EmbeddedCluster
from delayservice.smoke.judge import quantile
from tests.integration import fuzz_hooks
from tests.integration.asked import TOKEN, Asked
from tests.integration.bench import Bench, Reader, await_true, now_ms

ROOT: Final = Path(__file__).parents[2]
CONFIG: Final = ROOT / "tests" / "schemathesis.toml"
PARTITIONS: Final = 2
RATE: Final = 500
DELAY_MS: Final = 1_500
TICK_S: Final = 0.02
READ_S: Final = 0.005
"""A record may be taken for so much later than it is."""
EXAMPLES: Final = 60
"""For each operation in one round."""
_ROUND_TIMEOUT_S: Final = 3_600


def fuzz(
    address: str, folder: Path, kept: Sequence[str], *more: str
) -> tuple[subprocess.CompletedProcess[str], Counter[str]]:
    """One run of schemathesis.

    Args:
        address: of the API, which was given ``TOKEN``.
        folder: what it leaves goes there.
        kept: topics that it may not pause.
        more: arguments.

    Returns:
        How it ended, and how often each ``STATUS METHOD PATH`` was answered.
    """
    tally = folder / "tally"
    tally.write_text("")
    command = [str(Path(sysconfig.get_path("scripts")) / "schemathesis")]
    command += ["--config-file", str(CONFIG), "run", f"http://{address}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {TOKEN}", "--checks", "all", "--workers", "2"]
    command += ["--phases", "fuzzing", "--continue-on-failure", *more]
    environment = {
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": fuzz_hooks.__name__,
        fuzz_hooks.TALLY: str(tally),
        fuzz_hooks.KEPT: " ".join(kept),
    }
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_ROUND_TIMEOUT_S,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
    )
    return run, Counter(tally.read_text("utf-8").splitlines())


class Traffic:
    """Records that fall due at a steady pace, and how late a consumer sees each.

    Args:
        bench: the node's.
        target: theirs alone.
    """

    def __init__(self, bench: Bench, target: str) -> None:
        self._bench = bench
        self._target = target
        self._late: list[tuple[int, int]] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._write, self._read)]

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        written = 0
        started_s = time.monotonic()
        while not self._stopping.wait(TICK_S):
            while written < (time.monotonic() - started_s) * RATE:
                headers = self._bench.to(self._target, DELAY_MS)
                self._bench.send_later(headers, partition=written % PARTITIONS)
                written += 1

    def _read(self) -> None:
        with Reader(self._bench.bootstrap, [self._target]) as reader:
            while not self._stopping.is_set():
                reader.take(READ_S)
                at_ms = now_ms()
                for seen in reader.seen:
                    due_ms = int(seen.header("delay-due-at") or 0)
                    self._late.append((due_ms, at_ms - due_ms))
                reader.seen.clear()

    def lateness(self, start_ms: int, stop_ms: int) -> dict[str, int | None]:
        """Return number and lateness, ms, of records due in ``[start_ms, stop_ms)``, epoch ms."""
        late = Counter(late_ms for due_ms, late_ms in self._late if start_ms <= due_ms < stop_ms)
        return {
            "records": late.total(),
            "p50_ms": quantile(late, 0.5),
            "p99_ms": quantile(late, 0.99),
            "max_ms": quantile(late, 1.0),
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run it; the figures."""
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedCluster() as cluster,
        Bench(cluster.bootstrap, Path(name), partitions=PARTITIONS) as bench,
    ):
        target = bench.target("load")
        api = Asked(bench.serve(f"admin.token={TOKEN}"))
        await_true(lambda: api.raw("GET", "/readyz").is_success, "it is ready")
        with Traffic(bench, target) as traffic:
            return _three_phases(options, traffic, api, Path(name), (target, bench.any))


def _three_phases(
    options: argparse.Namespace, traffic: Traffic, api: Asked, folder: Path, kept: Sequence[str]
) -> dict[str, Any]:
    pause = threading.Event()
    pause.wait(options.warm_up)
    marks = [now_ms()]
    pause.wait(options.seconds)
    marks.append(now_ms())
    answers: Counter[str] = Counter()
    complaints: list[str] = []
    rounds = 0
    while answers.total() < options.requests:
        rounds += 1
        seed = ("--seed", str(options.seed + rounds), "--max-examples", str(EXAMPLES))
        run, found = fuzz(api.address, folder, kept, *seed)
        assert found, run.stdout + run.stderr
        answers += found
        if run.returncode != 0:
            complaints.append(run.stdout[-6_000:])
        say(f"round {rounds}: {answers.total()} requests")
    marks.append(now_ms())
    pause.wait(options.seconds)
    marks.append(now_ms())
    pause.wait(options.warm_up)  # what fell due last arrives
    names = ("before", "during", "after")
    phases = zip(names, marks[:-1], marks[1:], strict=True)
    classes = Counter(f"{answer[0]}xx" for answer in answers.elements())
    return {
        "requests": answers.total(),
        "rounds": rounds,
        "seconds": round((marks[2] - marks[1]) / 1_000, 1),
        "by_status_class": dict(sorted(classes.items())),
        "5xx": {answer: count for answer, count in answers.items() if answer[0] in "05"},
        "rate_per_s": RATE,
        "lateness": {name: traffic.lateness(start, stop) for name, start, stop in phases},
        "complaints": complaints,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # progress


def main() -> int:
    """Run it as the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="at least so many")
    parser.add_argument("--seconds", type=float, default=30, help="of the phases without requests")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    found = measure(parser.parse_args())
    print(json.dumps(found, indent=1))  # noqa: T201  # its result
    return 1 if found["5xx"] or found["complaints"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
