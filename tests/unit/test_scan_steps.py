"""A scan of a log gives its caller a turn although no record comes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connectors.kafka.clients import Clients
from connectors.kafka.scan import SCAN_STALL_S, SCAN_STEP_S, scan_partition
from delayservice.base.errors import KafkaEdgeError


class Silent:
    """A consumer of a log whose next record is behind an open transaction."""

    now_s = 0.0
    is_closed = False

    def assign(self, _: object) -> None: ...

    def poll(self, timeout_s: float) -> None:
        self.now_s += timeout_s

    def close(self) -> None:
        self.is_closed = True


def test_a_scan_yields_in_bounded_steps_until_it_has_waited_long_enough() -> None:
    silent = Silent()
    clients = Clients(consumer=lambda _: cast("Any", silent), monotonic_s=lambda: silent.now_s)
    steps = scan_partition({}, "delay_topic_any", 0, 7, 9, clients)
    for number in range(1, 100):
        assert next(steps) == (("delay_topic_any", 0), 7, [], 7, -1)
        assert silent.now_s == pytest.approx(number * SCAN_STEP_S)
    with pytest.raises(KafkaEdgeError, match="nothing from offset 7"):
        list(steps)
    assert silent.now_s == pytest.approx(SCAN_STALL_S, abs=2 * SCAN_STEP_S)
    assert silent.is_closed
