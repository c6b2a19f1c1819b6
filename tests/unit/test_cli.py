"""The command line: clear errors, exit statuses, nothing secret shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer import BadParameter
from typer.testing import CliRunner

from delayservice.cli import app
from delayservice.commands import sending
from delayservice.commands.send import RecordOptions
from delayservice.config.settings import load
from delayservice.contract.entry import Headers

ROOT = Path(__file__).parents[2]
NOW_MS = 1_800_000_000_000
ORDERS = ("delay-target-topic", b"orders")
NINE = ("delay-cron", b"0 9 * * *")


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
    ("setting", "valid", "problem"),
    [
        ("kafka.bootstrap=k:1", True, None),
        ("node.workerz=2", False, "did you mean node.workers?"),
        ("node.workers=2", False, "kafka.bootstrap is not set"),
    ],
)
def test_config_check_tells_if_a_node_could_start(
    setting: str, problem: str | None, *, valid: bool
) -> None:
    done = run("config", "check", "--json", "--set", setting)
    assert done.returncode == (0 if valid else 2)
    told = json.loads(done.stdout)
    assert told["valid"] is valid
    assert (problem or "") in (told["problem"] or "")


def test_an_error_is_one_line_and_debug_may_stand_anywhere() -> None:
    command = ("config", "show", "--set", "node.workerz=2")
    done = run(*command)
    assert done.returncode == 1
    assert done.stderr.decode().strip() == (
        "error: node.workerz (--set node.workerz) is no setting; did you mean node.workers?"
    )
    for debugged in (("--debug", *command), (*command, "--debug")):
        assert b"Traceback" in run(*debugged).stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["config", "show", "--nonsense"], "No such option"),
        (["nonsense"], "No such command"),
        (["send", "x", "--wait", "5"], "'5' has no unit: 5s or 5ms?"),
        (["send", "x", "--at", "soon"], "'soon' is no time: write a time as RFC 3339"),
        (["send", "x", "--at", "2030-01-31T08:00:00"], "with Z or an offset"),
        (["send", "x", "--at", "1893456000"], "looks like seconds"),
        (["send", "x", "--at", "+5m", "--after", "5m"], "give one of them"),
        (["send", "x", "--cron", "61 * * * *"], "is no cron expression: Bad minute"),
        (["send", "x", "--cron", "0 9 * * *", "--timezone", "Berlin"], "time zone database"),
        (["send", "--cancel"], "need --id"),
        (["send", "--cancel", "--fire", "--id", "a"], "not both"),
        (["send", "hello", "--after", "1s", "-t", "orders", "--wait", "5s"], "is for a cancel"),
        (["record", "reschedule", "a"], "give one of --at and --after"),
        (["dlq", "list", "--code", "nonsense"], "target-denied"),
        (["dlq", "list", "--source", "a b"], "TOPIC[:PARTITION[:OFFSET]]"),
        (["dlq", "list", "--from", "2h"], "'2h' is no time"),
        (["dlq", "replay", "--at", "1", "--after", "1s", "--yes"], "not both"),
        (["dlq", "replay"], "add --yes"),
        (["dev", "demo", "--store", "tape"], "is not one of"),
        (["dev", "try", "--after", "soon"], "'soon' is no duration"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_is_wrong(arguments: list[str], told: str) -> None:
    bootstrap = {"DELAYSERVICE_KAFKA__BOOTSTRAP": "127.0.0.1:1", "TERMINAL_WIDTH": "200"}
    done = CliRunner().invoke(app, arguments, env=bootstrap)
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.output.replace("│", " ").split())


def test_commands_that_need_a_broker_say_how_to_name_one() -> None:
    for command in (["run"], ["dlq", "list"], ["topics", "check"]):
        done = run(*command)
        assert done.returncode == 1
        assert b"kafka.bootstrap is not set" in done.stderr


def test_send_to_nobody_says_so_without_waiting_for_ever() -> None:
    done = run("send", "x", "--after", "1s", "-t", "orders", "-b", "127.0.0.1:1")
    assert done.returncode == 1
    assert b"no broker answers at 127.0.0.1:1" in done.stderr


def test_run_refuses_nodes_without_a_common_secret() -> None:
    done = run(
        "run", "--set", "kafka.bootstrap=127.0.0.1:1", "--set", "zookeeper.hosts=127.0.0.1:1"
    )
    assert done.returncode == 1
    assert b"node.cluster_secret" in done.stderr


def forecast(
    headers: Headers, *sets: str, value: bytes | None = b"x", topic: str = "delay_topic_any"
) -> sending.Forecast:
    settings = load(None, ["kafka.bootstrap=127.0.0.1:1", "admin.listen=", *sets], {})
    record = sending.Outgoing(topic, None, value, headers, None, None)
    return sending.Forecast(settings, record)


ALLOWED = "targets.default.allow=orders"
AFTER = ("delay-after", b"5")


@pytest.mark.parametrize(
    ("headers", "sets", "why", "is_certain"),
    [
        ([ORDERS], [ALLOWED], "is given", True),
        ([ORDERS], [], "is given, unless it is a level topic", False),
        ([("Delay-After", b"5")], [ALLOWED], "Delay-After is not read, delay-after would be", True),
        ([AFTER], [ALLOWED], "(target-missing)", True),
        ([AFTER], [], "unless the service has a default target", False),
        ([AFTER, ORDERS], ["targets.default.allow=others"], "(target-denied)", True),
        ([AFTER, ("delay-target-topic", b"delay_x")], [], "(target-denied)", True),
        ([("delay-cron", b"61 * * * *"), ORDERS], [ALLOWED], "(cron-invalid)", True),
    ],
)
def test_send_foresees_which_records_will_be_dead_lettered(
    headers: Headers, sets: list[str], why: str, *, is_certain: bool
) -> None:
    doubt = forecast(headers, *sets).doubt(NOW_MS)
    assert doubt is not None
    assert why in doubt.why
    assert doubt.is_certain is is_certain


@pytest.mark.parametrize(
    ("headers", "due_ms"),
    [
        ([("delay-at", b"2030-01-01T00:00:00Z"), ORDERS], 1_893_456_000_000),
        ([("delay-after", b"500"), ORDERS], NOW_MS + 500),
        ([NINE, ORDERS], 1_800_003_600_000),
        ([("delay-cron", b"61 * * * *"), ORDERS], None),
        ([ORDERS], None),
    ],
)
def test_the_due_time_is_what_the_service_reads(headers: Headers, due_ms: int | None) -> None:
    assert forecast(headers, ALLOWED).due_ms(0, NOW_MS) == due_ms


def test_a_record_of_a_level_topic_is_due_after_the_delay_of_the_level() -> None:
    said = forecast([ORDERS], ALLOWED, "levels.preset=default", topic="delay_topic_1")
    assert said.due_ms(0, NOW_MS) == NOW_MS + 5_000


def test_a_null_value_with_an_id_is_a_cancel_of_which_nothing_is_foreseen() -> None:
    cancel = forecast([("delay-id", b"a")], ALLOWED, value=None)
    assert cancel.is_control
    assert cancel.doubt(NOW_MS) is None
    assert not forecast([("delay-id", b"a"), AFTER, ORDERS], value=None).is_control


def test_a_value_comes_from_one_place(tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_bytes(b"\x00\xff")
    assert sending.read_value(None, path, null=False) == b"\x00\xff"
    assert sending.read_value("text", None, null=False) == b"text"
    assert sending.read_value(None, None, null=True) is None
    with pytest.raises(BadParameter, match="only one"):
        sending.read_value("text", path, null=False)


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        (
            RecordOptions(record_id="a", cancel=True, header=["own=1"]),
            {"delay-op": "cancel", "delay-id": "a", "own": "1"},
        ),
        (
            RecordOptions(at_ms=5, expires_at_ms=7, target="t", target_partition=2, target_key="k"),
            {
                "delay-at": "5",
                "delay-expires-at": "7",
                "delay-target-topic": "t",
                "delay-target-partition": "2",
                "delay-target-key": "k",
            },
        ),
        (RecordOptions(fire=True, record_id="a"), {"delay-op": "fire", "delay-id": "a"}),
        (
            RecordOptions(after_ms=1_000, window_ms=300_000),
            {"delay-after": "1000", "delay-window-ms": "300000"},
        ),
        (
            RecordOptions(every_ms=3_600_000, times=3),
            {"delay-every": "3600000", "delay-times": "3"},
        ),
        (
            RecordOptions(cron="0 9 * * *", timezone="Europe/Berlin"),
            {"delay-cron": "0 9 * * *", "delay-timezone": "Europe/Berlin"},
        ),
    ],
)
def test_options_of_send_become_headers(options: RecordOptions, headers: dict[str, str]) -> None:
    said = {name: (text or b"").decode() for name, text in options.headers()}
    assert said == headers
