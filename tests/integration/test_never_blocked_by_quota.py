"""A broker's produce quota makes deliveries late, and nothing else."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.jars import ensure_jars
from delay_devtools.servers import Jvm, find_java
from tests.integration.bench import Bench, now_ms

QUOTA_BYTES_PER_S = 256 * 1_024
RECORDS = 4_000
VALUE_BYTES = 1_000
THROTTLED_MS_MIN = 4_000
TIMEOUT_S = 90


@pytest.fixture
def client_id(cluster: EmbeddedCluster) -> Iterator[str]:
    """A client id with a produce quota: the Python client can't set one, Kafka's own tool can."""
    name = f"throttled-{uuid.uuid4().hex[:8]}"
    _configure(cluster, name, "--add-config", f"producer_byte_rate={QUOTA_BYTES_PER_S}")
    yield name
    _configure(cluster, name, "--delete-config", "producer_byte_rate")


def _configure(cluster: EmbeddedCluster, name: str, *change: str) -> None:
    jvm = Jvm(find_java(), ensure_jars(), cluster.folder / "log4j2.properties")
    command = jvm.command(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", cluster.bootstrap, "--alter", *change),
        *("--entity-type", "clients", "--entity-name", name),
        options=["-Xmx128m", "-XX:TieredStopAtLevel=1"],
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_throttled_service_is_late_and_loses_doubles_and_aborts_nothing(
    bench: Bench, client_id: str
) -> None:
    service = bench.serve(f"kafka.client.client.id={client_id}", "delivery.batch_bytes_max=256KiB")
    target = bench.target("throttled")
    due_ms = now_ms() + 4_000
    headers = [("delay-at", str(due_ms)), ("delay-target-topic", target)]
    values = {b"%0*d" % (VALUE_BYTES, number) for number in range(RECORDS)}
    for value in values:
        bench.send_later(headers, value=value)
    bench.producer.flush()
    bench.read(target, RECORDS, TIMEOUT_S)
    # When they arrived, and not their timestamps: a timestamp is taken when the record enters
    # the client's queue, and the broker answers late only then.
    late_ms = now_ms() - due_ms
    assert service.stop() == 0
    assert sorted(one.value or b"" for one in bench.read_all(target)) == sorted(values)
    assert late_ms > THROTTLED_MS_MIN
    for event in ("writer_ended", "ownership_lost", "slice_interrupted"):
        assert service.events(event) == []
