from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer import BadParameter
from typer.testing import CliRunner

from connectors.spark.audit import OffsetRange
from delayservice.cli import app
from delayservice.commands.options import pairs
from delayservice.commands.spark_audit import read_options, show_result
from delayservice.commands.spark_session import NEEDED
from delayservice.config.settings import load

ROOT = Path(__file__).parents[2]


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own in a folder that is not the project's."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", NEEDED)
def test_without_the_extra_the_commands_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    done = CliRunner().invoke(app, ["spark", "report", "-b", "localhost:1"])
    assert done.exit_code == 1
    assert f"the Spark commands need {name}, which is not installed" in done.stderr
    assert "[spark]" in done.stderr


def test_help_of_every_command_needs_nothing_of_the_extra() -> None:
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({NEEDED!r}))\n"
        "from delayservice.commands.spark import app\n"
        "for command in app.registered_commands:\n"
        "    name = (command.name or command.callback.__name__).replace('_', '-')\n"
        "    try:\n"
        "        app([name, '--help'])\n"
        "    except SystemExit as exc:\n"
        "        assert exc.code == 0, name\n"
    )
    done = called("-c", program)
    assert done.returncode == 0, done.stderr
    for name in ("audit", "reconcile", "report", "schedule"):
        assert f"Usage: python -c {name}" in done.stdout or f" {name} " in done.stdout


@pytest.mark.parametrize(
    "start",
    [[str(ROOT / "delayservice/commands/spark_job.py")], ["-m", "delayservice.commands.spark_job"]],
)
def test_the_job_for_clusters_has_the_same_commands(start: list[str]) -> None:
    """As a file it must not take its neighbour html.py for Python's own html."""
    done = called(*start, "schedule", "--help")
    assert done.returncode == 0, done.stderr
    assert "job.py schedule" in done.stdout
    done = called(*start, "report", "--set", "kafka.nonsense=1")
    assert done.returncode == 1
    assert "kafka.nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_with_names_keep_their_order_and_repetitions() -> None:
    assert pairs("--header", ["a=1", "b==x", "a=2"]) == [("a", "1"), ("b", "=x"), ("a", "2")]
    assert pairs("--conf", None) == []


@pytest.mark.parametrize("text", ["a", "=a", ""])
def test_an_option_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="NAME=VALUE"):
        pairs("--conf", [text])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedule"], "give one input"),
        (["schedule", "rows.csv", "--from-topic", "t"], "give one input"),
        (["schedule", "rows.csv", "--stream"], "are for --from-topic"),
        (["schedule", "--from-topic", "t"], "needs --checkpoint"),
        (["schedule", "--from-topic", "t", "--checkpoint", "c", "--dry-run"], "are for INPUT"),
        (["audit", "--archive", "a", "--follow"], "for one audit, without --follow"),
        (["audit", "--format", "csv", "--follow"], "for one audit, without --follow"),
        (["reconcile", "--repair", "1", "--folder", "n1=/tmp"], "so no --folder"),
    ],
)
def test_contradicting_options_are_wrong_usage(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["spark", *arguments, "-b", "localhost:1"])
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())


def test_which_copies_should_be_there_is_told_as_it_is() -> None:
    done = CliRunner().invoke(app, ["spark", "reconcile", "--help"], terminal_width=200)
    said = " ".join(done.stdout.replace("│", " ").split())
    assert "0: one on every --node, or at least one without --node" in said
    assert "Node to compare; repeatable. Default: all." in said


def test_an_audit_allows_the_clocks_to_differ_as_the_nodes_do() -> None:
    settings = load(None, ["kafka.bootstrap=b:1", "delivery.clock_tolerance_ms=7s"], {})
    assert read_options(settings, "out", None).strictness.clock_tolerance_ms == 7_000


@pytest.mark.parametrize("is_written", [True, False])
def test_an_audit_of_many_shards_is_shown_as_a_short_table(
    capsys: pytest.CaptureFixture[str], *, is_written: bool
) -> None:
    rows = tuple(
        {"kind": "lost", "topic": "d", "partition": 0, "offset": n, "detail": "gone"}
        for n in range(20)
    )
    found = SimpleNamespace(
        cut=SimpleNamespace(notes=("d:9 is in no checkpoint",)),
        judged=tuple(OffsetRange("d", n, 0, 100 if n else 0) for n in range(70)),
        counts={"delivered": 6_000, "pending": 900},
        findings={"lost": 1_234},
        unjudged={"evidence_deleted" if is_written else "no_checkpoint": 30},
        sample=rows,
        unjudged_sample=rows if is_written else (),
        findings_path="out/findings",
        unjudged_path="out/unjudged",
        seconds=12.0,
        rows_per_s=500.0,
    )
    show_result(cast("Any", found))
    told = capsys.readouterr()
    assert "6,900 offsets judged in 69 of 70 shards, 12 s, 500 records/s" in told.out
    words = {" ".join(line.split()) for line in told.out.splitlines()}
    reason = "30 evidence_deleted" if is_written else "30 no_checkpoint"
    assert {"6,000 delivered", "900 pending", "1,234 lost", reason} <= words
    assert ("all of them are in out/unjudged" in words) is is_written
    assert len(told.out.splitlines()) < 40
    assert "not audited: d:9" in told.err
