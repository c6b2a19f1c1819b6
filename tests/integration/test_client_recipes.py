"""What ``docs/client.md`` and ``docs/recipes.md`` tell users to write, taken and run.

What has to be fetched from a registry runs at night, and is skipped where there is none.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.jars import ensure_jars
from delay_devtools.servers import find_java
from delayservice.contract.partitioner import partition_for
from tests.docs.kafka_tools import CLASSES, TOOLS_JAR
from tests.integration.bench import Bench, served
from tests.integration.foreign_programs import class_path, fetch, need, run

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "docs" / "examples"
PARTITIONS: Final = 5
at_night = pytest.mark.night
minutes = pytest.mark.timeout(600)


bench = served(partitions=PARTITIONS)


def here(bench: Bench, text: str, target: str, more: Mapping[str, str] | None = None) -> str:
    """Return a recipe for this bench's broker and topics."""
    names = {
        "localhost:9092": bench.bootstrap,
        "delay_topic_any": bench.any,
        "orders": target,
        "shipping": target,
    }
    for known, wanted in {**names, **(more or {})}.items():
        text = text.replace(known, wanted)
    return text


def recipe(bench: Bench, page: str, language: str, holding: str, target: str) -> str:
    """Return the page's snippet that holds some text, for this bench's broker and topics."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    fences: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (found,) = (fence for fence in fences if holding in fence)
    return here(bench, found, target)


def example(
    bench: Bench, name: str, folder: Path, target: str, more: Mapping[str, str] | None = None
) -> Path:
    """Copy a folder of ``docs/examples``, for this bench's broker and topics."""
    place = folder / name
    shutil.copytree(EXAMPLES / name, place)
    for file in place.rglob("*"):
        if file.suffix in {".java", ".go", ".js", ".rs", ".properties"}:
            file.write_text(here(bench, file.read_text("utf-8"), target, more), "utf-8")
    return place


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


QUICKLY: Final = {"10s,1m,10m": "100ms,200ms"}


def assert_retried(bench: Bench, target: str, command: Sequence[str], folder: Path) -> None:
    """What was delivered comes again twice, and then the service dead-letters it."""
    with running(command, folder):
        (letter,) = bench.await_match(
            bench.dead_letter, lambda one: one.header("delay-target-topic") == target
        )
    assert letter.header("delay-error") == "retries-exhausted"
    seen = bench.read_all(target)
    assert [one.header("delay-retries") for one in seen] == [None, "1", "2"]
    assert {(one.key, one.value) for one in seen} == {(b"order-17", b"pay now")}
    assert [one.header("delay-id") for one in seen] == ["order-17", None, None]


def test_the_console_producer_schedules_a_record(bench: Bench, tmp_path: Path) -> None:
    target = bench.target("console")
    (tools,) = ensure_jars([TOOLS_JAR])
    text = recipe(bench, "recipes.md", "sh", "kafka-console-producer.sh", target)
    lines, _, call = text.partition("|\n")
    echo, record = shlex.split(lines)
    script, *options = shlex.split(call)
    assert (echo, script) == ("echo", "kafka-console-producer.sh")
    java = [str(find_java()), "-cp", class_path(str(tools))]
    run([*java, CLASSES[script], *options], tmp_path, record)
    assert_delivered(bench, target, b"pay now")


def test_javas_clients_schedule_a_record_and_retry_it(bench: Bench, tmp_path: Path) -> None:
    need("javac")
    target = bench.target("java")
    folder = example(bench, "java", tmp_path, target, QUICKLY)
    run(["javac", "-cp", class_path(), "DelayedOrder.java", "RetriedOrders.java"], folder)
    java = [str(find_java()), "-cp", class_path(".")]
    run([*java, "DelayedOrder", bench.bootstrap], folder)
    assert_delivered(bench, target, b"pay now")
    assert_retried(bench, target, [*java, "RetriedOrders", bench.bootstrap], folder)


def test_the_python_snippet_sends_cancels_reschedules_and_fires(bench: Bench) -> None:
    target = bench.target("python")
    text = recipe(bench, "client.md", "python", "import DelayProducer\n", target)
    text = text.replace('"}) as', f'"}}, "{bench.any}") as')  # the page's is the default
    exec(compile(text, "docs/client.md", "exec"), {})  # noqa: S102  # our own page
    said = {("closing-17", "cancelled"), ("reminder-17", "replaced"), ("reminder-17", "fired")}
    with bench.reader(bench.outcomes) as reader:
        while said:
            seen = reader.await_count(len(reader.seen) + 1)
            said -= {(one.header("delay-id"), one.header("delay-outcome")) for one in seen}
    assert [one.value for one in bench.read(target, 1)] == [b"remind later"]
    letters = bench.read_all(bench.dead_letter)
    assert [one for one in letters if one.header("delay-target-topic") == target] == []


def test_the_consumer_of_dead_letters_prints_those_of_its_target(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bench of its own: others assert that there are no dead letters."""
    with Bench(cluster.bootstrap, tmp_path, partitions=1) as bench, bench.serving():
        bench.send_later([("delay-after", "soon"), ("delay-target-topic", "orders")])
        bench.send_later([("delay-after", "soon"), ("delay-target-topic", "others")])
        bench.producer.flush()
        bench.read(bench.dead_letter, 2)
        text = here(bench, (EXAMPLES / "dead_letters.py").read_text("utf-8"), "orders")
        text = text.replace("delay_dead_letter", bench.dead_letter)
        exec(compile(text.replace("while True:", "for _ in range(15):"), "recipe", "exec"), {})  # noqa: S102  # our own page
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"time-invalid {bench.any}:0:")


# --- at night: what is fetched and built ---------------------------------------------------------


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples in Java need, by Maven."""
    need("mvn", "javac")
    folder = tmp_path_factory.mktemp("jars")
    shutil.copy(EXAMPLES / "java" / "pom.xml", folder)
    fetch("mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars", folder)
    return folder / "jars"


def java_of(jars: Path) -> list[str]:
    return [str(find_java()), "-cp", f"{jars}/*:."]


@contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[None]:
    """Run a program that goes on until it is told to stop; what it said is in its log."""
    log = folder / "log"
    with log.open("wb") as said:
        program = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
    try:
        yield
    except BaseException as exc:
        exc.add_note(log.read_text("utf-8")[-4000:])
        raise
    finally:
        program.send_signal(signal.SIGTERM)
        try:
            program.wait(30)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


@at_night
@minutes
def test_springs_template_schedules_a_record(bench: Bench, jars: Path, tmp_path: Path) -> None:
    target = bench.target("spring")
    folder = example(bench, "java", tmp_path, target)
    run(["javac", "-cp", f"{jars}/*", "SpringDelayedOrder.java"], folder)
    run([*java_of(jars), "SpringDelayedOrder", bench.bootstrap], folder)
    assert_delivered(bench, target, b"pay now")


@at_night
@minutes
def test_a_stream_schedules_what_it_reads(bench: Bench, jars: Path, tmp_path: Path) -> None:
    target, source = bench.target("streamed"), bench.target("payments")
    names = {"payments": source, "delayed-stream": f"delayed-stream-{source}"}
    folder = example(bench, "java", tmp_path, target, names)
    run(["javac", "-cp", f"{jars}/*", "DelayedStream.java"], folder)
    bench.send([], key=b"order-17", value=b"pay now", topic=source)
    with running([*java_of(jars), "DelayedStream", bench.bootstrap], folder):
        assert_delivered(bench, target, b"pay now")


@at_night
@minutes
def test_a_connector_schedules_with_headers_that_it_inserts(
    bench: Bench, jars: Path, tmp_path: Path
) -> None:
    target = bench.target("connected")
    folder = example(bench, "connect", tmp_path, target)
    (folder / "lines.txt").write_text("pay now\n", "utf-8")
    with (folder / "worker.properties").open("a", encoding="utf-8") as worker:
        worker.write("listeners=http://127.0.0.1:0\n")
    files = ["worker.properties", "delayed-lines.properties"]
    with running(
        [*java_of(jars), "org.apache.kafka.connect.cli.ConnectStandalone", *files], folder
    ):
        (one,) = bench.read(target, 1)
    assert (one.key, one.value, one.own) == (None, b"pay now", [])


TOOLS: Final = {
    "go": (["go"], "go build -mod=readonly -o bin/ . ./retry"),
    "node": (["node", "npm"], "npm ci --ignore-scripts --no-audit --no-fund"),
    "rust": (["cargo", "gcc", "make"], "cargo build -q"),
}


@at_night
@minutes
@pytest.mark.parametrize(
    ("language", "program", "retry"),
    [
        ("go", ["./bin/delayed-order"], ["./bin/retry"]),
        ("node", ["node", "delayed_order.js"], ["node", "retried_orders.js"]),
        ("rust", ["./target/debug/delayed-order"], ["./target/debug/retried_orders"]),
    ],
)
def test_another_language_schedules_a_record_and_retries_it(
    bench: Bench, tmp_path: Path, language: str, program: list[str], retry: list[str]
) -> None:
    tools, build = TOOLS[language]
    need(*tools)
    target = bench.target(language)
    folder = example(bench, language, tmp_path, target, QUICKLY)
    fetch(build, folder)
    run([*program, bench.bootstrap], folder)
    assert_delivered(bench, target, b"pay now")
    assert_retried(bench, target, [*retry, bench.bootstrap], folder)


@at_night
@minutes
def test_a_trace_arrives_with_its_record(bench: Bench, tmp_path: Path) -> None:
    target = bench.target("traced")
    pip = f"{sys.executable} -m pip install -q --disable-pip-version-check --target packages"
    fetch(f"{pip} opentelemetry-sdk==1.45.2", tmp_path)
    text = here(bench, (EXAMPLES / "traced.py").read_text("utf-8"), target)
    text = text.replace("sys.argv[1]})", f'sys.argv[1]}}, "{bench.any}")')
    (tmp_path / "traced.py").write_text(text, "utf-8")
    start = (
        "import runpy; from opentelemetry import trace; from opentelemetry.sdk.trace import "
        "TracerProvider; trace.set_tracer_provider(TracerProvider()); "
        "runpy.run_path('traced.py', run_name='__main__')"
    )
    path = ":".join(map(str, (tmp_path / "packages", ROOT, ROOT / "client")))
    run([sys.executable, "-c", start, bench.bootstrap], tmp_path, PYTHONPATH=path)
    (one,) = bench.read(target, 1)
    assert [name for name, _ in one.own] == ["traceparent"]
    (parent,) = (bytes(value or b"") for _, value in one.own)
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]", parent)
