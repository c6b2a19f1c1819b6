"""What ``docs/client.md`` tells users to write, taken from the page and run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.jars import ensure_jars
from delay_devtools.java import find_java
from delayservice.contract.partitioner import partition_for
from tests.docs.kafka_tools import CLASSES, TOOLS_JAR
from tests.integration.bench import Bench

PAGE: Final = (Path(__file__).parents[2] / "docs" / "client.md").read_text("utf-8")
PARTITIONS: Final = 5


@pytest.fixture(scope="module")
def bench(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("recipes")
    with Bench(cluster.bootstrap, folder, partitions=PARTITIONS) as running:
        service = running.serve()
        yield running
        assert service.stop() == 0


def recipe(bench: Bench, language: str, holding: str, target: str) -> str:
    """The page's snippet that holds some text, for this bench's broker and topics."""
    fences: list[str] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (text,) = (fence for fence in fences if holding in fence)
    names = {"localhost:9092": bench.bootstrap, "delay_topic_any": bench.any, "orders": target}
    for page, here in names.items():
        text = text.replace(page, here)
    return text


def run(command: list[str], *, cwd: Path, text: str = "") -> None:
    done = subprocess.run(
        command, cwd=cwd, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def class_path(*more: str) -> str:
    return os.pathsep.join([*more, *map(str, ensure_jars())])


def assert_delivered(bench: Bench, target: str, value: bytes) -> None:
    """Three seconds after it was written, from the partition where Python would have put it."""
    (one,) = bench.read(target, 1)
    assert (one.key, one.value, one.own) == (b"order-17", value, [])
    assert one.header("delay-id") == "order-17"
    topic, partition, offset = (one.header("delay-source") or "").split(":")
    assert (topic, int(partition)) == (bench.any, partition_for(b"order-17", PARTITIONS))
    (source,) = bench.await_match(
        topic, lambda seen: (seen.partition, seen.offset) == (int(partition), int(offset))
    )
    assert one.header("delay-due-at") == str(source.timestamp_ms + 3_000)


def test_the_console_producer_schedules_a_record(bench: Bench, tmp_path: Path) -> None:
    target = bench.target("console")
    (tools,) = ensure_jars([TOOLS_JAR])
    lines, _, call = recipe(bench, "sh", "kafka-console-producer.sh", target).partition("|\n")
    echo, record = shlex.split(lines)
    script, *options = shlex.split(call)
    assert (echo, script) == ("echo", "kafka-console-producer.sh")
    java = [str(find_java().executable), "-cp", class_path(str(tools))]
    run([*java, CLASSES[script], *options], cwd=tmp_path, text=record)
    assert_delivered(bench, target, b"pay now")


@pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler")
def test_javas_producer_schedules_a_record(bench: Bench, tmp_path: Path) -> None:
    target = bench.target("java")
    source = tmp_path / "DelayedOrder.java"
    source.write_text(recipe(bench, "java", "class DelayedOrder", target), "utf-8")
    run(["javac", "-cp", class_path(), source.name], cwd=tmp_path)
    java = [str(find_java().executable), "-cp", class_path(".")]
    run([*java, "DelayedOrder", bench.bootstrap], cwd=tmp_path)
    assert_delivered(bench, target, b"pay now")


def test_the_python_snippet_sends_cancels_reschedules_and_fires(bench: Bench) -> None:
    target = bench.target("python")
    text = recipe(bench, "python", "import DelayProducer\n", target)
    text = text.replace('"}) as', f'"}}, "{bench.any}") as')  # the page's is the default
    exec(compile(text, "docs/client.md", "exec"), {})  # noqa: S102  # our own page
    said = {("closing-17", "cancelled"), ("reminder-17", "replaced"), ("reminder-17", "fired")}
    with bench.reader(bench.outcomes) as reader:
        while said:
            seen = reader.await_count(len(reader.seen) + 1)
            said -= {(one.header("delay-id"), one.header("delay-outcome")) for one in seen}
    assert [one.value for one in bench.read(target, 1)] == [b"remind later"]
    assert bench.read_all(bench.dead_letter) == []
