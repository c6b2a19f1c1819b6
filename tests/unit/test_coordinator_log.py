"""Which lines of a client's log end its writer."""

from __future__ import annotations

import logging

import pytest

from connectors.kafka.clients import CoordinatorLog

CLOSED = "[thrd:TxnCoordinator]: TxnCoordinator: broker:9092: Disconnected (after 9ms in state UP)"


@pytest.mark.parametrize(
    ("level", "facility", "line", "is_failure"),
    [
        (logging.INFO, "FAIL", CLOSED, True),
        (
            logging.WARNING,
            "REQTMOUT",
            CLOSED.replace("Disconnected", "Timed out 1 in-flight"),
            True,
        ),
        (logging.DEBUG, "FAIL", CLOSED, False),
        (logging.ERROR, "FAIL", "[thrd:broker:9092/1]: broker:9092/1: Disconnected", False),
        (logging.WARNING, "GETPID", "[thrd:main]: TxnCoordinator/1: Not coordinator", False),
    ],
    ids=["closed", "no answer", "closed on purpose, with debug", "another broker", "an answer"],
)
def test_only_failed_connections_to_the_coordinator_are_failures(
    level: int, facility: str, line: str, *, is_failure: bool
) -> None:
    log = CoordinatorLog()
    log.log(level, "%s [%s] %s", facility, "rdkafka#producer-1", line)
    assert log.failure == (line if is_failure else "")
