"""The command line: clear errors, exit statuses, nothing secret shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayservice.admin.http_server import HttpServer, make_metrics_app
from delayservice.base.errors import DelayServiceError
from delayservice.cli import app
from delayservice.commands import send
from delayservice.config.settings import load
from delayservice.contract import names
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_slice, encode_snapshot
from delayservice.metrics.status import SliceState

ROOT = Path(__file__).parents[2]
ORDERS = ("delay-target-topic", b"orders")


def run(*arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DELAYSERVICE_")}
    return subprocess.run(
        [sys.executable, "-m", "delayservice", *arguments],
        check=False,
        capture_output=True,
        cwd=ROOT,
        env={**kept, "COLUMNS": "200", "NO_COLOR": "1", **environ},
        input=stdin,
        timeout=120,
    )


@pytest.mark.parametrize(
    "command", ["run", "send", "status", "dlq", "config", "version", "demo", "bench", "dev"]
)
def test_every_command_explains_itself(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert b"Usage" in done.stdout


def test_config_shows_values_and_origins_and_hides_secrets() -> None:
    done = run(
        "config",
        "--json",
        "--set",
        "node.workers=2",
        "--set",
        "kafka.client.sasl.password=hunter22",
        DELAYSERVICE_LOG__LEVEL="debug",
    )
    shown = json.loads(done.stdout)
    assert shown["node.workers"] == {"value": 2, "origin": "--set node.workers"}
    assert shown["log.level"] == {"value": "debug", "origin": "DELAYSERVICE_LOG__LEVEL"}
    assert shown["kafka.client.sasl.password"]["value"] == "(hidden)"
    table = run("config", "--set", "kafka.client.sasl.password=hunter22")
    assert table.returncode == 0
    assert b"hunter22" not in done.stdout + table.stdout
    assert b"max_delay_ms" in table.stdout


def test_an_error_is_told_in_one_line_without_a_traceback() -> None:
    done = run("config", "--set", "node.workerz=2")
    assert done.returncode == 1
    assert done.stderr.decode().strip() == (
        "error: node.workerz (--set node.workerz) is no setting; did you mean node.workers?"
    )
    assert b"Traceback" in run("--debug", "config", "--set", "node.workerz=2").stderr


def test_wrong_usage_is_status_2() -> None:
    assert run("config", "--nonsense").returncode == 2
    assert run("nonsense").returncode == 2


def test_run_without_a_broker_says_how_to_name_one() -> None:
    done = run("run")
    assert done.returncode == 1
    assert b"kafka.bootstrap is not set" in done.stderr


def test_send_to_nobody_says_so_without_waiting_for_ever() -> None:
    done = run("send", "delay_topic_any", "x", "--after", "1s", "-b", "127.0.0.1:1")
    assert done.returncode == 1
    assert b"no broker answers at 127.0.0.1:1" in done.stderr


def test_status_tells_health_by_its_exit_status() -> None:
    hub = MetricsHub(load(None, ["node.workers=1"], {}))
    server = HttpServer(make_metrics_app(hub), "metrics", "127.0.0.1:0")
    address = server.serve()
    assert address is not None
    try:
        assert run("status", address).returncode == 3
        hub.update(
            0,
            encode_snapshot(
                Snapshot(1), [encode_slice(SliceState(0, state="owner", pending=1_234))]
            ),
        )
        done = run("status", address)
        assert done.returncode == 0
        assert b"1,234" in done.stdout
        assert json.loads(run("status", address, "--json").stdout)["healthy"] is True
    finally:
        server.close()
    done = run("status", address)
    assert done.returncode == 1
    assert b"no node answers" in done.stderr


def test_run_refuses_nodes_without_a_common_secret() -> None:
    done = run(
        "run", "--set", "kafka.bootstrap=127.0.0.1:1", "--set", "zookeeper.hosts=127.0.0.1:1"
    )
    assert done.returncode == 1
    assert b"node.cluster_secret" in done.stderr


def test_a_demo_of_an_unknown_store_ends_before_anything_starts() -> None:
    assert run("demo", "--store", "tape").returncode == 2


def test_a_table_that_is_piped_is_not_cut() -> None:
    hub = MetricsHub(load(None, ["node.workers=1"], {}))
    server = HttpServer(make_metrics_app(hub), "metrics", "127.0.0.1:0")
    address = server.serve()
    assert address is not None
    try:
        hub.update(0, encode_snapshot(Snapshot(1), [encode_slice(SliceState(0, state="owner"))]))
        assert b"next due" in run("status", address, COLUMNS="").stdout
    finally:
        server.close()


@pytest.mark.parametrize(
    ("headers", "sets", "why"),
    [
        ([], [], "(time-missing)"),
        ([("Delay-After", b"5")], [], "Delay-After is not read, delay-after would be"),
        ([("delay-after", b"5")], [], "(target-missing)"),
        ([("delay-after", b"5"), ORDERS], ["targets.default.allow=others"], "(target-denied)"),
        ([("delay-after", b"5"), ("delay-target-topic", b"delay_x")], [], "(target-denied)"),
        ([("delay-op", b"cancel"), ("delay-id", b"a")], [], None),
    ],
)
def test_what_will_be_dead_lettered_is_foreseen(
    headers: list[tuple[str, bytes]], sets: list[str], why: str | None
) -> None:
    record = send.Outgoing("delay_topic_any", None, b"x", headers, None, None)
    said = send.doubt(
        load(None, ["kafka.bootstrap=127.0.0.1:1", *sets], {}), record, 1_800_000_000_000
    )
    assert said is None if why is None else why in (said or "")


def test_a_due_time_given_as_an_own_header_is_not_guessed() -> None:
    assert send.due_text([(names.DELAY_AT, b"2030-01-01T00:00:00Z")], 0) is None


@pytest.mark.parametrize(
    ("at", "after", "header"),
    [
        ("2030-01-31T08:00:00Z", None, (names.DELAY_AT, b"1896076800000")),
        ("1896076800000", None, (names.DELAY_AT, b"1896076800000")),
        (None, "30s", (names.DELAY_AFTER, b"30000")),
        (None, "PT30S", (names.DELAY_AFTER, b"30000")),
        (None, "1500", (names.DELAY_AFTER, b"1500")),
    ],
)
def test_times_are_sent_as_milliseconds(
    at: str | None, after: str | None, header: tuple[str, bytes]
) -> None:
    assert send.time_header(at, after) == [header]


@pytest.mark.parametrize(
    ("at", "after"),
    [("soon", None), ("2030-01-31T08:00:00", None), ("1893456000", None), (None, "x"), ("1", "1")],
)
def test_a_time_that_cannot_be_read_is_refused_before_it_is_sent(
    at: str | None, after: str | None
) -> None:
    with pytest.raises(DelayServiceError):
        send.time_header(at, after)


def test_a_value_comes_from_one_place(tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_bytes(b"\x00\xff")
    assert send.read_value(None, path, null=False) == b"\x00\xff"
    assert send.read_value("text", None, null=False) == b"text"
    assert send.read_value(None, None, null=True) is None
    with pytest.raises(DelayServiceError, match="only one"):
        send.read_value("text", path, null=False)


def test_the_due_time_is_shown_in_utc() -> None:
    assert send.due_text([(names.DELAY_AFTER, b"500")], 1_000) == "1970-01-01T00:00:01.500+00:00"
    assert send.due_text([], 1_000) is None


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        (["--id", "a", "--cancel"], {"delay-op": "cancel", "delay-id": "a"}),
        (["--id", "a", "--fire"], {"delay-op": "fire", "delay-id": "a"}),
        (["x", "--every", "PT1H", "--times", "3"], {"delay-every": "3600000", "delay-times": "3"}),
        (["x", "--after", "1s", "--window", "5m"], {"delay-window-ms": "300000"}),
        (
            ["x", "--cron", "0 9 * * *", "--timezone", "Europe/Berlin"],
            {"delay-cron": "0 9 * * *", "delay-timezone": "Europe/Berlin"},
        ),
    ],
)
def test_send_says_every_kind_of_schedule(
    options: list[str], headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[send.Outgoing] = []

    def keep(_config: object, record: send.Outgoing, _on_ready: object) -> send.DeliveryReport:
        sent.append(record)
        return send.DeliveryReport(record.topic, 0, 0, 0)

    monkeypatch.setattr(send, "send", keep)
    done = CliRunner().invoke(app, ["send", "-b", "nobody:1", "delay_topic_any", *options])
    assert done.exit_code == 0, done.output
    said = {name: text.decode() for name, text in sent[0].headers}
    assert headers.items() <= said.items()
    assert (sent[0].value is None) == ("delay-op" in headers)


def test_send_says_what_an_operation_lacks() -> None:
    assert b"needs --id" in run("send", "--cancel").stderr
    assert b"not both" in run("send", "--cancel", "--fire", "--id", "a").stderr
