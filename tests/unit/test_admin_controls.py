"""What becomes of the producer of controls, after errors that no broker makes on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectors.kafka import controls
from connectors.kafka.controls import CONFIRM_S, ControlClient
from connectors.kafka.outcomes import RecordPlace
from delayservice.base.errors import KafkaEdgeError

FATAL = KafkaError(KafkaError._FATAL, "out of order", fatal=True)
REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT, "timed out")


class Report:
    def offset(self) -> int:
        return 7


class Producer:
    """Reports one fate of all that it is given."""

    def __init__(self, options: dict[str, Any], fate: KafkaError | None, *, raises: bool) -> None:
        self.options = options
        self._fate = fate
        self._raises = raises
        self._notes: list[Callable[[KafkaError | None, Report], None]] = []

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        if self._raises and self._fate is not None:
            raise KafkaException(self._fate)
        self._notes.append(on_delivery)

    def poll(self, _: float) -> None:
        while self._notes:
            self._notes.pop()(self._fate, Report())


class Desk:
    """A desk whose producers have these fates, one after the other."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *fates: KafkaError | None, raises: bool = False
    ) -> None:
        self.made: list[Producer] = []
        left = iter(fates)

        def make(options: dict[str, Any]) -> Producer:
            self.made.append(Producer(options, next(left), raises=raises))
            return self.made[-1]

        monkeypatch.setattr(controls, "producer_client", make)
        self._desk = ControlClient({"message.timeout.ms": "300000"}, {}, cast("Any", None), "o")

    def write(self) -> RecordPlace:
        return self._desk.write("t", 1, b"k", None, [])


@pytest.mark.parametrize("raises", [False, True])
def test_after_a_fatal_error_the_next_request_makes_another_producer(
    monkeypatch: pytest.MonkeyPatch, *, raises: bool
) -> None:
    desk = Desk(monkeypatch, FATAL, None, raises=raises)
    with pytest.raises(KafkaEdgeError, match="t:1 can't be written: out of order"):
        desk.write()
    assert desk.write() == RecordPlace("t", 1, 7)
    assert len(desk.made) == 2


def test_after_any_other_error_the_producer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, REFUSED)
    for _ in range(2):
        with pytest.raises(KafkaEdgeError, match="can't be written: too large"):
            desk.write()
    assert len(desk.made) == 1


def test_the_producer_gives_up_when_the_caller_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, TIMED_OUT)
    with pytest.raises(KafkaEdgeError, match=f"not confirmed within {CONFIRM_S:g} s; it may be"):
        desk.write()
    assert desk.made[0].options["message.timeout.ms"] == CONFIRM_S * 1_000
