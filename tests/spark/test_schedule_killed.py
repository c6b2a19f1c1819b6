"""``delayservice spark schedule``, killed at every step: each record is written once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from connectors.kafka.clients import admin_client
from connectors.kafka.dead_letters import partition_counts
from delay_devtools.cluster import EmbeddedCluster
from delayservice.base import faults
from tests.conftest import MakeTopic
from tests.integration.bench import Reader, await_true
from tests.spark.conftest import QUICK_JAVA

STEPS = ("bulk_fenced", *(name for name in faults.POINTS if name.startswith("bulk_")))
SOME_STEPS = ("bulk_marked", "bulk_committed", "bulk_written")
RECORDS = 4_000
FEWER = 2_000
TRANSACTION = 100
WAIT_S = 120.0

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


class Job:
    """The command on one input, run again and again."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path, topics: list[str]) -> None:
        self.bootstrap = cluster.bootstrap
        self.folder = folder
        self.delay_topic, self.target, self.feed = topics
        self.trap = folder / "trap"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, master: str, fault: str = "") -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "delayservice", "spark", "schedule", *arguments]
        words += ["--topic", self.delay_topic, "-t", self.target, "--after", "1d", "--id", "id"]
        words += ["-b", self.bootstrap, "--set", "targets.default.allow=to_*", "--master", master]
        words += ["--conf", f"spark.sql.execution.arrow.maxRecordsPerBatch={TRANSACTION}", "--json"]
        words += ["--conf", QUICK_JAVA]
        environ = {**os.environ, "DELAYSERVICE_KAFKA__BOOTSTRAP": "127.0.0.1:1"}
        environ |= {faults.VARIABLE: fault}
        if str(self.trap) in fault:
            self.trap.touch()
        self.running.append(
            subprocess.Popen(
                words,
                cwd=self.folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.running[-1]

    def stream(self, *arguments: str, fault: str = "") -> subprocess.Popen[str]:
        """From another cluster, as far as the settings know."""
        (self.folder / "feed.toml").write_text(f'[kafka]\nbootstrap = "{self.bootstrap}"', "utf-8")
        state = ["--checkpoint", str(self.folder / "state"), "--schema", "id string, n int"]
        origin = ["--from-topic", self.feed, "--from-config", "feed.toml"]
        arguments = (*origin, *state, *arguments)
        return self.start(*arguments, master="local[1]", fault=fault)

    def await_trap(self, process: subprocess.Popen[str]) -> None:
        """Until the fault has happened."""
        await_true(lambda: not self.trap.exists() or process.poll() is not None, "fault", WAIT_S)
        assert not self.trap.exists(), told(process)

    def written(self) -> Counter[bytes | None]:
        with Reader(self.bootstrap, [self.delay_topic]) as reader:
            return Counter(seen.key for seen in reader.to_end(60))


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a run says; assert that it ended well."""
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors[-4_000:]
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def kill(process: subprocess.Popen[str]) -> None:
    """With all that it has started, Java and Python."""
    for one in psutil.Process(process.pid).children(recursive=True):
        one.kill()
    process.kill()
    process.communicate(timeout=WAIT_S)


@pytest.fixture
def job(cluster: EmbeddedCluster, make_topic: MakeTopic, tmp_path: Path) -> Iterator[Job]:
    topics = [make_topic("delay_topic", partitions=2), make_topic("to"), make_topic("feed")]
    admin = admin_client({"bootstrap.servers": cluster.bootstrap})
    await_true(lambda: {*topics} <= partition_counts(admin).keys(), "the topics are there")
    made = Job(cluster, tmp_path, topics)
    yield made
    for process in made.running:
        if process.poll() is None:
            kill(process)


def fill(job: Job, count: int) -> None:
    producer = Producer({"bootstrap.servers": job.bootstrap})
    for n in range(count):
        producer.produce(job.feed, json.dumps({"id": f"id-{n}", "n": n}))
    assert producer.flush(30) == 0


@pytest.mark.parametrize(
    "steps", [SOME_STEPS, pytest.param(STEPS, marks=pytest.mark.night)], ids=["some", "all"]
)
def test_a_stream_that_is_killed_at_every_step_writes_each_record_once(
    job: Job, steps: tuple[str, ...]
) -> None:
    fill(job, RECORDS)
    for step in steps:
        process = job.stream(fault=f"{step}:stick:{job.trap}")
        job.await_trap(process)
        kill(process)
    last = told(job.stream())
    assert (last["batches"], last["written"]) == (1, 0)  # the step before was: all is written
    written = job.written()
    assert len(written) == written.total() == RECORDS


@pytest.mark.night
def test_a_stream_that_is_told_to_stop_completes_its_batch(job: Job) -> None:
    fill(job, RECORDS)
    process = job.stream("--stream", "--interval", "200ms", fault=f"bulk_flushed:hang:{job.trap}")
    job.await_trap(process)
    process.send_signal(signal.SIGTERM)
    done = told(process)
    assert (done["kind"], done["batches"], done["rejected"]) == ("schedule_stream", 1, {})
    assert (done["written"], len(job.written())) == (RECORDS, RECORDS)
    assert told(job.stream())["written"] == 0


@pytest.mark.night
def test_a_folder_that_lost_its_batches_is_refused_in_a_line(job: Job) -> None:
    fill(job, 20)
    assert told(job.stream("--max-records", "10"))["batches"] == 2
    shutil.rmtree(job.folder / "state" / "spark")
    process = job.stream()
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "the folder of the checkpoint is older than what was written" in errors
    assert len(errors.splitlines()) == 1, errors
    assert job.written().total() == 20


@pytest.mark.parametrize(
    "step", [pytest.param("bulk_marked", marks=pytest.mark.night), "bulk_committed"]
)
def test_tasks_that_die_again_and_again_write_what_is_left(job: Job, step: str) -> None:
    """The command itself passes each step once for a part, a task once for a transaction."""
    rows = "".join(f"id-{n},{n}\n" for n in range(FEWER))
    (job.folder / "rows.csv").write_text(f"id,n\n{rows}", "utf-8")
    process = job.start("rows.csv", master="local[2]", fault=f"{step}:kill:3")
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "run the same again, which writes what is missing" in errors
    done = told(job.start("rows.csv", master="local[2,30]", fault=f"{step}:kill:3"))
    assert 0 < done["written"] == FEWER - done["there"] < FEWER
    written = job.written()
    assert len(written) == written.total() == FEWER
