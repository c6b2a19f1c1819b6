"""Common parts of the Spark commands: options, start and end of the Spark session, repetition, and
output as text or JSON.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import EXIT_ERROR, EXIT_FINDINGS, emit, err, out, print_error
from delayservice.commands.extras import how_to_install
from delayservice.commands.options import Duration, KafkaOptions, pairs
from delayservice.smoke.progress import stop_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.spark.common.progress import Say

# Spark is imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

# What the extra ``spark`` installs; without them no Spark command runs.
NEEDED: Final = ("pyspark", "pyarrow", "pandas", "jinja2")

STATUS: Final = "Exit status: 0 clean, 1 an error, 2 wrong usage, 3 something was found."
STATUS_JUDGED: Final = f"{STATUS[:-1]}, 4 nothing was found and not all could be judged."

# Folder that Spark 4.0.0 always creates in the working directory; removed if empty.
_STRAY: Final = Path("artifacts")
_JAVA_END_S: Final = 60.0
_STDERR: Final = 2
_LOG_TAIL_CHARS: Final = 4_000

OutOption = Annotated[
    str, typer.Option("--out", help="Folder or URL of the results, which replace earlier ones.")
]


@dataclass(frozen=True, slots=True)
class TopicOptions(KafkaOptions):
    """Options of the commands that read target topics."""

    targets: Annotated[list[str] | None, typer.Option("--target", "-t", metavar="TOPIC")] = None
    """Read this target; repeatable. Default: all."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Options of the commands that can be repeated and publish what they find."""

    publish: bool = False
    """Also write to the topic topics.audit."""
    follow: bool = False
    """Go on until Ctrl-C."""
    interval_ms: Duration = 60_000
    """Interval of --follow."""


@dataclass(frozen=True, slots=True)
class Running:
    """Running Spark session, and ``say``, a function that shows a text as the current step."""

    spark: SparkSession
    say: Say
    as_json: bool = False

    def emit(self, result: Mapping[str, object], show: Callable[[], None]) -> None:
        emit(result, show, as_json=self.as_json)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of the commands that use a Spark session; ``conf`` overrides all other settings of
    Spark.
    """

    PANEL: ClassVar = "Spark"

    master: Annotated[str | None, typer.Option(metavar="URL")] = None
    """local[4], spark://host:7077 or another of Spark's masters. Default: all cores of this
    machine; with spark-submit, its own.
    """
    conf: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE")] = None
    """Spark setting; repeatable."""

    @contextmanager
    def running(
        self, command: str, *, as_json: bool, usual: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[Running]:
        """Yield a Spark session for a command, and show progress on standard error. ``usual``:
        settings of Spark for this command.

        Raises:
            DelayServiceError: there is no Java for Spark, a setting has no ``=``, or Spark failed.
        """
        from py4j.protocol import Py4JError
        from pyspark.sql import SparkSession

        from connectors.spark.common.progress import hush, shown
        from connectors.spark.common.session import FAILURES, open_session, reason

        settings = {**usual, **dict(pairs("--conf", self.conf))}
        is_ours = SparkSession.getActiveSession() is None
        was_there = _STRAY.exists()
        try:
            with _unseen():
                spark = open_session(f"delayservice {command}", master=self.master, conf=settings)
        except FAILURES as exc:
            raise DelayServiceError(f"Spark did not start: {reason(exc)}") from exc
        try:
            hush(spark)
            with shown(spark, err, is_plain=as_json) as say:
                yield Running(spark, say, as_json)
        except FAILURES as exc:
            raise DelayServiceError(f"Spark failed: {reason(exc)}") from exc
        except (Py4JError, ConnectionRefusedError) as exc:
            raise DelayServiceError(
                f"Spark's Java process does not answer, as if it was killed ({reason(exc)}): "
                "if memory was short, give it less than the machine has, with "
                "--conf spark.driver.memory=…"
            ) from exc
        finally:
            if is_ours:
                with suppress(Py4JError, ConnectionRefusedError):  # it is gone already
                    spark.stop()
                _end_java()
                if not was_there:
                    with suppress(OSError):  # a folder with content is kept
                        _STRAY.rmdir()


def require_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise DelayServiceError(
            f"the Spark commands need {', '.join(missing)}, which is not installed: "
            f"{how_to_install('spark')}"
        )


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set while the ``with`` block runs. This
    replaces PySpark's handler of Ctrl-C, which may call Java during another call and hang.
    """
    stop = threading.Event()
    with stop_signals(lambda *_: stop.set()):
        yield stop


def repeat(job: Running, interval_ms: int, step: Callable[[], None], stop: threading.Event) -> bool:
    """Call ``step`` at intervals until ``stop`` is set; return whether the last call failed. A
    failure is printed, and the next interval tries again.
    """
    from connectors.spark.common.progress import each_interval
    from connectors.spark.common.session import RETRIED, reason

    failed = False
    for _ in each_interval(interval_ms / 1_000, stop, job.say):
        try:
            step()
        except RETRIED as exc:
            if stop.is_set():  # it was stopped in the middle
                break
            failed = True
            print_error(f"{reason(exc)}; it is tried again in {interval_ms // 1_000} s")
        else:
            failed = False
    return failed


def followed_status(status: int, *, failed: bool) -> int:
    """Return the exit status of a job that was repeated. ``status``: by what it has found;
    ``failed``: whether its last attempt failed.
    """
    return EXIT_ERROR if failed and status != EXIT_FINDINGS else status


def show_counts(title: str, counts: Mapping[str, int], style: str) -> None:
    if counts:
        out.print(title, style=style)
    for name, count in counts.items():
        out.print(f"{count:>14,}  {name}", markup=False)


def show_rows(rows: Iterable[Mapping[str, object]]) -> None:
    for row in rows:
        place = f"{row['topic']}:{row['partition']}:{row['offset']}"
        out.print(f"  {row['kind']} {place}  {row['detail']}", markup=False)


def show_findings(
    findings: Mapping[str, int], sample: Iterable[Mapping[str, object]], path: str
) -> None:
    """Print the number of findings of each kind, a sample of them, and the path of all."""
    if not findings:
        out.print("nothing was found", style="bold green")
        return
    show_counts("findings", findings, "bold red")
    show_rows(sample)
    out.print(f"all of them are in {path}", style="dim", markup=False)


def _end_java() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001  # PySpark has no other way to end it
    java = getattr(gateway, "proc", None)
    if gateway is None or java is None:  # spark-submit ends its own
        return
    gateway.shutdown()
    java.stdin.close()
    java.wait(_JAVA_END_S)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001  # the next session starts anew


@contextmanager
def _unseen() -> Iterator[None]:
    # Java's log can't be configured before it starts. The output is shown if the start fails, or
    # with ``--debug``.
    if "--debug" in sys.argv:
        yield
        return
    sys.stderr.flush()
    own = os.dup(_STDERR)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), _STDERR)
        try:
            yield
        except DelayServiceError:
            raise
        except Exception:
            os.dup2(own, _STDERR)
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
            err.print(said[-_LOG_TAIL_CHARS:], style="dim", markup=False)
            raise
        finally:
            os.dup2(own, _STDERR)
            os.close(own)
