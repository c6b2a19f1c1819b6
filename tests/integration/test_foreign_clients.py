"""A cancel by any client finds what any other one scheduled, each with its own partitioner.

Java's client comes by the lock of jars, franz-go by ``go.sum``, kafkajs by ``package-lock.json``.
The first run fetches them, from the registries that their tools are set up to ask.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from confluent_kafka import Producer

from delay_devtools.servers import find_java
from tests.integration.bench import Bench, Header, benches, outcomes_by_id
from tests.integration.foreign_programs import class_path, fetch, need, run
from tests.integration.test_homes import (
    PARTITIONS,
    YEAR_MS,
    await_fences,
    forwarded,
)

pytestmark = [pytest.mark.night, pytest.mark.timeout(600)]

Said: TypeAlias = Mapping[str, str]
Send: TypeAlias = Callable[[Bench, Sequence[str], Said], None]
"""Writes a record with headers for each id, which is its key, and ends when brokers have them."""

FOREIGN: Final = Path(__file__).parent / "foreign"
IDS: Final = 5
"""Of each pair of clients."""


bench = benches(partitions=PARTITIONS)


@pytest.fixture
def clients(tmp_path: Path) -> dict[str, Send]:
    """The five, ready to send."""
    need("javac", "go", "node", "npm")
    folder = tmp_path / "foreign"
    shutil.copytree(FOREIGN, folder)
    fetch("go build -mod=readonly -o send .", folder / "go")
    fetch("npm ci --ignore-scripts --no-audit --no-fund", folder / "node")
    run(["javac", "-cp", class_path(), "Send.java"], folder / "java")
    java = [str(find_java()), "-cp", class_path(str(folder / "java")), "Send"]
    return {
        "java": partial(by_program, java),
        "confluent": by_confluent,
        "kafkajs": partial(by_program, ["node", str(folder / "node" / "send.js")]),
        "franz": partial(by_program, [str(folder / "go" / "send")]),
        "cli": by_cli,
    }


def by_program(command: Sequence[str], bench: Bench, ids: Sequence[str], said: Said) -> None:
    fields = [field for header in said.items() for field in header]
    lines = ["\t".join([one, "delay-id", one, *fields]) for one in ids]
    run([*command, bench.bootstrap, bench.any], bench.folder, "\n".join(lines) + "\n")


def by_confluent(bench: Bench, ids: Sequence[str], said: Said) -> None:
    producer = Producer({"bootstrap.servers": bench.bootstrap})
    for one in ids:
        headers: list[Header] = [("delay-id", one), *said.items()]
        producer.produce(bench.any, b"python", one.encode(), headers=headers)
    assert producer.flush(30) == 0


def by_cli(bench: Bench, ids: Sequence[str], said: Said) -> None:
    if said.get("delay-op") == "cancel":
        what = ["--cancel"]
    else:
        what = ["--after", said["delay-after"], "--target", said["delay-target-topic"]]
    command = [sys.executable, "-m", "delayservice", "send", "--topic", bench.any, *what]
    command += ["--bootstrap", bench.bootstrap]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: run([*command, "--key", one, "--id", one], bench.folder), ids))


def test_a_cancel_by_any_client_finds_what_any_other_scheduled(
    bench: Bench, clients: Mapping[str, Send]
) -> None:
    target = bench.target("orders")
    ids = {
        f"{one} {other} {number}": (one, other)
        for one in clients
        for other in clients
        for number in range(IDS)
    }
    service = bench.serve()
    far = {"delay-after": f"{YEAR_MS}ms", "delay-target-topic": target}
    for name, send in clients.items():
        send(bench, [record_id for record_id, (one, _) in ids.items() if one == name], far)
    await_fences(bench)
    for name, send in clients.items():
        cancelled = [record_id for record_id, (_, other) in ids.items() if other == name]
        send(bench, cancelled, {"delay-op": "cancel"})
    await_fences(bench)
    found = outcomes_by_id(bench)
    wrong = {one: found.get(one) for one in ids if found.get(one) != Counter(cancelled=2)}
    missed = sorted({ids[one] for one in wrong})
    assert not wrong, f"{len(missed)} of {len(clients) ** 2} pairs miss: {missed}: {wrong}"
    assert bench.read_all(target, bench.dead_letter) == []
    names = [one.header("delay-id") or "" for one in forwarded(bench)]
    away = {ids[name] for name in names if name in ids}  # the others are fences
    assert away == {pair for pair in ids.values() if "confluent" in pair}, "others choose as Java"
    assert service.stop() == 0
