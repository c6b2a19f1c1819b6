"""The command line: errors, exit statuses, what is printed and logged, and what is installed."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import httpx
import pytest
import structlog
from confluent_kafka import KafkaError
from rich.console import Console
from typer import BadParameter
from typer.testing import CliRunner

from connectors.kafka import clients
from connectors.kafka.controls import CONFIRM_S, ControlClient
from delay_devtools.shown import show_lateness, show_numbers
from delayservice import __version__
from delayservice.__main__ import NEEDED
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.cli import app
from delayservice.commands import bulk, console, options, sending
from delayservice.commands.api import Api, connect
from delayservice.commands.send import RecordOptions
from delayservice.config.settings import LogSettings, Settings, load
from delayservice.contract.entry import Headers, NewRecord
from delayservice.process import logs
from delayservice.process.logs import HINTS

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
def test_config_check_says_what_is_wrong(setting: str, problem: str | None, *, valid: bool) -> None:
    done = run("config", "check", "--json", "--set", setting)
    assert done.returncode == (0 if valid else 2)
    told = json.loads(done.stdout)
    assert told["valid"] is valid
    assert (problem or "") in (told["problem"] or "")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("client.nosuch=1", 'No such configuration property: "nosuch"'),
        ("consumer.fetch.min.bytes=x", 'Invalid value for configuration property "fetch.min.bytes'),
        ("producer.max.in.flight=10", "`max.in.flight` must be set <= 5"),
        ("client.socket.timeout.ms=60000", "`socket.timeout.ms` must be set <="),
    ],
)
def test_options_that_the_kafka_client_refuses_are_told_before_anything_starts(
    tmp_path: Path, option: str, why: str
) -> None:
    sets = ("--set", "kafka.bootstrap=k:1", "--set", f"kafka.{option}")
    done = run("config", "check", "--json", *sets)
    assert done.returncode == 2
    assert why in json.loads(done.stdout)["problem"]
    state_dir = tmp_path / "state"
    node = run("run", *sets, "--set", f"node.state_dir={state_dir}")
    smoke = run("smoke", "--target", "t", *sets)
    for refused in (node, smoke):
        assert refused.returncode == 1
        assert refused.stderr.decode().startswith("error: ")
        assert why in refused.stderr.decode()
    assert not state_dir.exists()


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
        (["send", "x", "--id", "a", "--no-id"], "not both"),
        (["record", "reschedule", "a"], "give one of --at and --after"),
        (["record", "cancel", "a", "--target", "t"], "or a selection and its options"),
        (["record", "cancel", "a", "--all"], "or a selection and its options"),
        (["record", "cancel", "a", "--dry-run"], "or a selection and its options"),
        (["record", "cancel", "--yes"], "every record would be changed"),
        (["record", "fire", "--id", "", "--yes"], "every record would be changed"),
        (["record", "cancel", "--id", "**", "--target", "*"], "every record would be changed"),
        (["record", "cancel", "--id", "[", "--wait", "1s"], "add --yes, or --dry-run"),
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


def test_a_record_with_a_time_gets_an_id_of_its_own() -> None:
    made = {
        sent.record_id
        for sent in (RecordOptions(after_ms=1).record("t", "x") for _ in range(2))
        if ("delay-id", sent.record_id) in sent.headers
    }
    assert len(made) == 2
    for given in (
        RecordOptions(after_ms=1, no_id=True),
        RecordOptions(null=True),
        RecordOptions(target="level topic"),
        RecordOptions(after_ms=1, header=["delay-id=own"]),
    ):
        assert given.record("t", None if given.null else "x").record_id is None
    assert RecordOptions(cron="@daily", record_id="own").record("t", "x").record_id == b"own"


# --- commands that ask a running node, and what they print ----------------------------------------


MADE = "the token that the node has made"
HOSTILE = "a\x1b]0;owned\x07\x9b31m\N{RIGHT-TO-LEFT OVERRIDE}\N{RIGHT-TO-LEFT ISOLATE}\r\nb [bold]"


def settings_in(folder: Path, *sets: str) -> Settings:
    return load(None, [f"node.state_dir={folder}", *sets], {})


def sent(settings: Settings, address: str | None, token_file: Path | None = None) -> str | None:
    api = connect(settings, address, token_file)
    assert bool(api.no_token) == ("Authorization" not in api.client.headers)
    bearer = api.client.headers.get("Authorization")
    return None if bearer is None else bearer.removeprefix("Bearer ")


@pytest.mark.parametrize(
    ("address", "is_sent"),
    [
        (None, True),
        ("127.0.0.1:9465", True),
        ("127.8.8.8:9465", True),
        ("[::1]:9465", True),
        ("localhost:9465", True),
        ("0.0.0.0:9465", True),
        ("[::]:9465", True),
        ("node-2:9465", False),
        ("10.0.0.2:9465", False),
        ("127.evil.example:9465", False),
        ("localhost.evil.example:9465", False),
        ("localhost:x@evil.example:9465", False),
    ],
)
def test_a_made_token_stays_on_loopback(
    tmp_path: Path, *, address: str | None, is_sent: bool
) -> None:
    (tmp_path / "admin_token").write_text(MADE + "\n")
    assert sent(settings_in(tmp_path), address) == (MADE if is_sent else None)


def test_a_token_that_is_named_or_configured_is_sent_anywhere(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.write_text("another token, by name\n")
    configured = settings_in(tmp_path, "admin.tokens.sre.token=a configured token")
    assert sent(configured, "node-2:9465") == "a configured token"
    assert sent(configured, "node-2:9465", named) == "another token, by name"


def test_a_made_token_that_cannot_be_read_keeps_nobody_from_reading(tmp_path: Path) -> None:
    (tmp_path / "admin_token").mkdir()  # root reads every file, but no folder
    api = connect(settings_in(tmp_path), None, None)
    assert "Authorization" not in api.client.headers
    assert "can't be read" in api.no_token


@pytest.mark.parametrize("content", [None, b"", b"\xff\xff", b"a\nb", "t\u00f6ken".encode()])
def test_a_token_file_that_was_named_has_to_hold_one(tmp_path: Path, content: bytes | None) -> None:
    named = tmp_path / "named"
    if content is not None:
        named.write_bytes(content)
    with pytest.raises(DelayServiceError, match=r"named (can't be read|holds no token)|in .*named"):
        connect(settings_in(tmp_path), None, named)


def test_an_address_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DelayServiceError, match="no HOST:PORT"):
        connect(settings_in(tmp_path), "node:port", None)


def test_a_length_of_time_is_told_in_the_largest_unit_that_fits_twice() -> None:
    told = [console.span(ms) for ms in (0, 1_999, 2_000, 119_999, 5_400_000, 2_591_905_000)]
    assert told == ["0 ms", "1,999 ms", "2 seconds", "120 seconds", "90 minutes", "30 days"]


def test_what_looks_like_an_emoji_code_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = "delay_topic_any:100:1707 user:email:7"
    console.say(console.out, places)
    console.print_error(places)
    told = capsys.readouterr()
    assert (told.out, told.err) == (f"{places}\n", f"error: {places}\n")


@pytest.mark.parametrize(
    ("answer", "is_said"),
    [
        (httpx.ReadTimeout("too late"), True),
        (httpx.Response(503), True),
        (httpx.Response(400), False),
        (httpx.Response(401), False),
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("too late"), False),
    ],
    ids=str,
)
def test_a_reschedule_that_fails_says_by_which_time_to_repeat_it(
    capsys: pytest.CaptureFixture[str], answer: httpx.Response | Exception, *, is_said: bool
) -> None:
    """For what was changed before it failed would move twice; a refused one changed nothing."""
    client = Mock(spec=httpx.Client)
    client.request.side_effect = [answer]
    chosen = bulk.ChangeOptions(id_pattern="a*", yes=True)
    asked = {"operation": "reschedule", "at_ms": 5, "wait_ms": 1, "dry_run": False}
    with pytest.raises(DelayServiceError, match="node:1"):
        bulk._run(Api(client, "node:1"), chosen, asked)
    told = " ".join(capsys.readouterr().err.split())
    assert ("repeat it with --at 5" in told) is is_said


def test_only_a_node_can_say_that_nothing_is_there() -> None:
    client = Mock(spec=httpx.Client)
    problem = httpx.Response(404, json={"detail": "nothing is pending", "errors": []})
    client.request.side_effect = [problem, httpx.Response(404, text="<html>")]
    api = Api(client, "node:1")
    with pytest.raises(console.NothingThereError, match="nothing is pending"):
        api.get("/v1/records")
    with pytest.raises(DelayServiceError, match="not a node of this version") as caught:
        api.get("/v1/records")
    assert not isinstance(caught.value, console.NothingThereError)


def test_json_goes_to_standard_output_while_progress_is_shown_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Console(stderr=True, force_terminal=True).status("looking"):
        console.emit([{"a": 1}], print, as_json=True)
    assert capsys.readouterr().out == '{"a": 1}\n'


def test_json_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"detail": HOSTILE + "\u00e4"})
    line = capsys.readouterr().out.removesuffix("\n")
    assert line.isprintable()
    assert "\u00e4" in line
    assert json.loads(line) == {"detail": HOSTILE + "\u00e4"}


# --- what is told of a control that was not written, after errors that no broker makes on demand --


REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT, "timed out")
UNCONFIRMED = f"not confirmed within {CONFIRM_S:g} s; it may be"


class Producer:
    """Reports one fate of all that it is given, or nothing."""

    def __init__(self, fate: KafkaError | None) -> None:
        self._fate = fate
        self._note: Callable[[KafkaError, None], None] | None = None

    def produce(self, *, on_delivery: Any, **_: object) -> None:
        self._note = on_delivery

    def poll(self, _: float) -> None: ...

    def list_topics(self, topic: str, timeout_s: float) -> None: ...

    def flush(self, _: float) -> int:
        if self._note is None or self._fate is None:
            return 1
        self._note(self._fate, None)
        return 0


@pytest.mark.parametrize(
    ("fate", "text"),
    [(REFUSED, "can't be written: too large"), (TIMED_OUT, UNCONFIRMED), (None, UNCONFIRMED)],
)
def test_a_control_is_refused_or_may_be_written(
    monkeypatch: pytest.MonkeyPatch, fate: KafkaError | None, text: str
) -> None:
    made: list[dict[str, Any]] = []

    def make(options: dict[str, Any]) -> Producer:
        made.append(options)
        return Producer(fate)

    monkeypatch.setattr(clients, "producer_client", make)
    desk = ControlClient({"message.timeout.ms": "300000"}, {}, cast("Any", None), "o")
    with pytest.raises(KafkaEdgeError, match=f"t:1 .*{text}"):
        desk.write([NewRecord("t", 1, b"k", None, [])])
    assert made[0]["message.timeout.ms"] == CONFIRM_S * 1_000, "it gives up when that is told"


# --- what runs show at their end ------------------------------------------------------------------


def console_of() -> Console:
    return Console(file=StringIO(), width=120, force_terminal=True, color_system="standard")


def written(shown: Console) -> str:
    assert isinstance(shown.file, StringIO)
    return shown.file.getvalue()


def test_bars_are_as_long_as_their_counts_and_never_vanish() -> None:
    shown = console_of()
    show_lateness(shown, [("≤ 5 ms", [(100, "green"), (100, "yellow")]), ("later", [(1, "red")])])
    first, last = written(shown).splitlines()[-2:]
    assert first.count("█") == 50
    assert (last.count("█"), "201" in first, "200" in first) == (1, False, True)


def test_a_number_that_has_to_be_zero_is_red_when_it_is_not() -> None:
    shown = console_of()
    show_numbers(shown, "bench", {"sent": 12_000, "lost": 3, "early": 0, "unknown": None})
    text = written(shown)
    assert "12,000" in text
    assert "unknown" not in text
    assert text.count("\x1b[1;31m") == 1


# --- what an installation holds, and which configuration it reads ---------------------------------


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CLIENT_ALONE = """
from connectors.kafka import client
producer = client.DelayProducer({"log_level": 0})
producer.send("orders", b"v", delay="1h30m", cron=None)
client.LevelProducer(producer.producer).send("orders", b"v", delay=1)
assert len(producer) == 2
try:
    producer.send("delay_topic_1", b"v", delay=1)
except client.InvalidRequestError as exc:
    print(exc)
producer.producer.purge()
"""
INSTALLED_AS = {"pure-sasl": "puresasl"}


def without_extras(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where nothing that only the extra ``node`` brings can be imported."""
    extra = PROJECT["project"]["optional-dependencies"]["node"]
    names = [INSTALLED_AS.get(name, name.replace("-", "_")) for name in extra]
    hidden = f"import sys; sys.modules.update(dict.fromkeys({names!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + program], check=False, capture_output=True, text=True
    )


def test_the_client_works_where_only_the_base_is_installed() -> None:
    done = without_extras(CLIENT_ALONE)
    assert done.returncode == 0, done.stderr
    assert "reserved" in done.stdout


def test_the_command_says_in_one_line_what_to_install_where_only_the_base_is() -> None:
    done = without_extras("from delayservice.__main__ import main\nmain()")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"delayservice needs {', '.join(NEEDED)}" in line
    assert "[node]" in line


def test_version_and_build_backend_are_those_of_package_and_lock() -> None:
    assert PROJECT["project"]["version"] == __version__
    lock = (ROOT / "requirements" / "build.txt").read_text("utf-8")
    locked = re.findall(r"^\S+==\S+", lock, re.MULTILINE)
    assert PROJECT["build-system"]["requires"] == locked
    assert set(locked) <= set(PROJECT["project"]["optional-dependencies"]["dev"])


def test_the_package_without_a_clone_has_no_development_commands() -> None:
    program = (
        "import sys\nsys.modules['delay_devtools'] = None\nfrom delayservice.cli import app\napp()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={"TERM": "dumb", "COLUMNS": "80"},
    )
    assert "smoke" in done.stdout
    assert "bench" not in done.stdout


# --- commands find the configuration where deployments put it; a node does not --------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "delayservice.toml"
    path.write_text('[kafka]\nbootstrap = "installed:9092"\n', "utf-8")
    monkeypatch.setattr(options, "INSTALLED", path)
    return path


def bootstrap(*words: str) -> dict[str, str]:
    done = CliRunner().invoke(app, ["config", "show", "--json", *words])
    assert done.exit_code == 0, done.output
    found: dict[str, str] = json.loads(done.stdout)["kafka.bootstrap"]
    return found


def test_a_command_reads_the_installed_file_and_says_so(installed: Path) -> None:
    assert bootstrap() == {"value": "installed:9092", "origin": installed.name}


@pytest.mark.usefixtures("installed")
def test_another_file_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[kafka]\nbootstrap = "other:9092"\n', "utf-8")
    assert bootstrap("--config", str(other))["value"] == "other:9092"
    monkeypatch.setenv("DELAYSERVICE_CONFIG", str(other))
    assert bootstrap()["value"] == "other:9092"


@pytest.mark.usefixtures("installed")
def test_a_node_is_given_its_own() -> None:
    assert options.load(None, [], is_node=True).settings.kafka.bootstrap != "installed:9092"
    assert options.load(None, []).settings.kafka.bootstrap == "installed:9092"


def test_nothing_installed_is_nothing_read(installed: Path) -> None:
    installed.unlink()
    assert bootstrap()["origin"] == "default"


# --- logs: one way for all, and no secrets on it --------------------------------------------------


SECRET = "hunter22"  # noqa: S105 (an example)


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def configured(**log: str) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(LogSettings.model_validate(log), "n1", 2, secrets=[SECRET], stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_elsewhere_than_on_a_terminal_lines_are_json_with_node_and_worker() -> None:
    stream = configured()
    structlog.get_logger("lane").info("batch settled", records=5)
    (line,) = lines(stream)
    assert line["message"] == "batch settled"
    assert (line["node"], line["worker"], line["records"]) == ("n1", 2, 5)
    assert (line["level"], line["logger"]) == ("info", "lane")


def test_an_event_is_explained_unless_its_line_is() -> None:
    stream = configured()
    structlog.get_logger("lane").info("caught_up", slice=1)
    structlog.get_logger("lane").info("caught_up", hint="at last")
    assert [line["hint"] for line in lines(stream)] == [HINTS["caught_up"], "at last"]


def test_librdkafka_and_kazoo_go_the_same_way_from_any_thread() -> None:
    stream = configured()
    thread = threading.Thread(
        target=lambda: logging.getLogger("librdkafka").warning("broker %s", "down")
    )
    thread.start()
    thread.join()
    logging.getLogger("kazoo.client").warning("lost")
    assert [(line["logger"], line["message"], line["node"]) for line in lines(stream)] == [
        ("librdkafka", "broker down", "n1"),
        ("kazoo.client", "lost", "n1"),
    ]


def test_lines_below_the_log_level_are_not_written() -> None:
    stream = configured(level="warning")
    structlog.get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_written_by_name_text_value_or_traceback(form: str) -> None:
    stream = configured(format=form)
    log = structlog.get_logger("x")
    log.warning("a", sasl_password=SECRET, config={"ssl.key.pem": SECRET}, many=[SECRET])
    log.warning("value %s and sasl.password=other-secret, next", SECRET)
    try:
        int(SECRET)
    except ValueError:
        log.exception("failed")
    logging.getLogger("kazoo").warning("auth %s", SECRET)
    assert SECRET not in stream.getvalue()
    assert "other-secret" not in stream.getvalue()
    assert "next" in stream.getvalue()


def test_a_record_key_is_no_secret() -> None:
    stream = configured()
    structlog.get_logger("x").info("cursor", key=(5, 7))
    assert lines(stream)[0]["key"] == [5, 7]


def test_people_get_no_json() -> None:
    stream = configured(format="console")
    structlog.get_logger("x").info("batch settled", records=5)
    assert "batch settled" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_a_client_that_repeats_itself_is_heard_once_and_others_still_are() -> None:
    stream = configured()
    client = logging.getLogger("librdkafka")
    for attempt in range(50):
        client.warning("FAIL [rdkafka#producer-%d] broker: refused (after %d ms)", attempt, attempt)
    client.warning("FAIL [rdkafka#producer-1] broker: no such host (after 1 ms)")
    assert len(lines(stream)) == 2


# --- the collector's policy, in a process of its own: it changes the whole interpreter ------------


SCRIPT = """
import gc, weakref
from delayservice.process import worker

class Ring:
    def __init__(self):
        self.me = self

worker.collect_garbage()
held = [weakref.ref(Ring()) for _ in range(10_000)]
assert all(ring() is not None for ring in held), "collected by count"
worker.collect_garbage()
assert all(ring() is None for ring in held), "cycles are never collected"
living = Ring()
held = weakref.ref(living)
worker.collect_garbage()
del living
for _ in range(worker.COLLECT_ALL_EVERY):
    worker.collect_garbage()
assert held() is None, "a cycle that outlived one collection is never collected"
"""


def test_cycles_are_collected_at_the_interval_and_at_no_other_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
