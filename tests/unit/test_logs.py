"""Logs: one way for all, and no secrets on it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog

from delayservice.config.settings import LogSettings
from delayservice.process import logs
from delayservice.process.logs import HINTS

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
"""


def test_cycles_are_collected_at_the_interval_and_at_no_other_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
