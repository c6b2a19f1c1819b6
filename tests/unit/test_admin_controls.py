"""What is told of a control that was not written, after errors that no broker makes on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from connectors.kafka import clients
from connectors.kafka.controls import CONFIRM_S, ControlClient
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import NewRecord

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
