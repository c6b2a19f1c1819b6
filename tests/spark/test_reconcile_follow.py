"""Jobs with ``--follow`` as processes outlive failures, and end when told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic

from delay_devtools.cluster import EmbeddedCluster
from tests.conftest import MakeTopic
from tests.integration.bench import await_true
from tests.spark.conftest import QUICK_JAVA
from tests.spark.copies_world import NEAR, World, without


@contextmanager
def following(
    world: World, folder: Path, *more: str, job: str = "reconcile"
) -> Iterator[subprocess.Popen[str]]:
    topics = {"checkpoint": world.checkpoint, "digests": world.digests, "repairs": world.repairs}
    sets = [f"topics.{name}={topic}" for name, topic in topics.items()]
    words = ["spark", job, "--follow", "--interval", "1s", "--json", *more]
    words += ["-b", world.bootstrap, "--master", "local[2]", "--out", str(folder / "out")]
    words += ["--conf", QUICK_JAVA]
    words += [word for one in [*sets, f"topics.audit={world.audit}"] for word in ("--set", one)]
    process = subprocess.Popen(
        [sys.executable, "-m", "delayservice", *words],
        stdout=(folder / "stdout").open("w"),
        stderr=(folder / "stderr").open("w"),
        cwd=folder,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "stdout").read_text().splitlines()]


def failures(folder: Path) -> int:
    return (folder / "stderr").read_text().count("tried again")


@pytest.mark.timeout(900)
@pytest.mark.night
def test_a_comparison_that_fails_is_tried_again_and_sigterm_ends_it(
    cluster: EmbeddedCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    world = World(cluster.bootstrap, make_topic)
    world.digests = f"{world.digests}_later"
    with following(world, tmp_path) as process:
        await_true(lambda: failures(tmp_path) >= 2, "two comparisons fail", 120)
        assert lines(tmp_path) == []
        world.admin.create_topics([NewTopic(world.digests, 1, 1)])[world.digests].result(30)
        for partition in range(2):
            right = world.shape(partition)[0]
            world.publish("n1", partition, right)
            world.publish("n2", partition, right)
        await_true(lambda: any(one["clean"] for one in lines(tmp_path)), "all agree", 120)
        world.publish("n2", 0, without(3)(world.shape(0)[0]))
        copies = {("n2", 0): without(3)(world.shape(0)[0])}
        with world.answering(copies) as heard:
            await_true(lambda: lines(tmp_path)[-1]["findings"], "a finding", 120)
            copies.clear()  # no node answers any more
            asked = len(heard)
            await_true(lambda: len(heard) > asked, "a node is asked", 120)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 3, "it does not wait for the answers"
    told = lines(tmp_path)[-1]
    pending = sum(len(world.pending(partition)) for partition in range(2))
    assert (told["findings"], told["repairs"]["made"]) == ({"missing": 1}, 0)
    assert (told["records"], told["pending"]) == (pending, pending + 2 * NEAR)


def test_an_audit_whose_last_attempt_failed_does_not_end_as_clean(
    cluster: EmbeddedCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    world = World(cluster.bootstrap, make_topic)
    world.checkpoint = f"{world.checkpoint}_none"
    with following(world, tmp_path, job="audit") as process:
        await_true(lambda: failures(tmp_path) >= 1, "an attempt fails", 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 1
