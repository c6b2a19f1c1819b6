"""Writes one record into a delay topic, and foresees what the service will do with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from confluent_kafka import KafkaException, Message
from pydantic import ValidationError

from connectors.kafka.clients import admin_client, partitions_of, write_confirmed
from connectors.kafka.controls import ControlClient
from connectors.kafka.errors import error_of
from connectors.kafka.topic_facts import topic_ids
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.commands.api import connect
from delayservice.config.contract import allowlist_for, contract_for, reserved_topics
from delayservice.config.settings import Settings
from delayservice.contract.codec import Payload
from delayservice.contract.codes import (
    TARGET_DENIED,
    TARGET_MISSING,
    TIME_MISSING,
    RecordRefusedError,
)
from delayservice.contract.contracts import HEADER_BYTES_MAX, MAX_DELAY_MS_MAX, Contracts
from delayservice.contract.cron import cron_time
from delayservice.contract.entry import CANCEL, FIRE, INVALID, SCHEDULE, Entry, Headers, RecordPlace
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import first_ms, recurrence_of
from delayservice.contract.targets import Allowlist

TIMEOUT_S = 15.0
# How long to wait for the node of this machine to tell its settings.
_ASK_S = 2.0
# Partition number that makes librdkafka choose the partition.
_ANY_PARTITION = -1
# What the code says is wrong only if the service, whose settings are not known, has this.
_UNLESS = {
    TIME_MISSING: ", unless it is a level topic",
    TARGET_MISSING: ", unless the service has a default target",
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Record to write to a delay topic. ``partition`` None: that of its id, or else of its key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    record_id: bytes | None


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """Confirmation of the broker; on a delay topic, the timestamp is the time of the append."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def read_value(value: str | None, value_file: Path | None, *, null: bool) -> bytes | None:
    # Without an argument and a file, or with ``-``, the value is read from standard input.
    if (value is not None) + (value_file is not None) + null > 1:
        raise typer.BadParameter("give a value, --value-file or --null, only one of them")
    if null:
        return None
    if value is not None and value != "-":
        return value.encode()
    if value_file is not None:
        try:
            return value_file.read_bytes()
        except OSError as exc:
            raise DelayServiceError(f"{value_file} can't be read: {exc.strerror or exc}") from exc
    if sys.stdin.isatty():
        raise typer.BadParameter("no value: give one, --value-file, --null, or pipe it in")
    return sys.stdin.buffer.read()


class Forecast:
    """Forecast of what the service will do with a record, by its own reader. Its settings are the
    given ones if they have ``[targets]``, else those of the node on this machine; else they are
    not known, and only what holds for any settings is said.
    """

    def __init__(self, settings: Settings, record: Outgoing) -> None:
        self._settings = settings
        self._record = record
        self._rules = settings if settings.targets else _node_settings(settings)
        # Without homes, because the partition of the record is not known yet.
        contract = replace(contract_for(self._rules or settings, record.topic), id_partitions=0)
        if self._rules is None:
            contract = replace(
                contract,
                max_delay_ms=MAX_DELAY_MS_MAX,
                clamp=True,
                header_bytes_max=HEADER_BYTES_MAX,
            )
        self._reader = RecordReader(record.topic, 0, Contracts([(0, contract)]), [])

    def _entry(self, offset: int, written_ms: int) -> Entry:
        record = self._record
        return self._reader.read(offset, written_ms, record.key, record.value, record.headers)

    @property
    def is_control(self) -> bool:
        return self._entry(0, 0)[1] in (CANCEL, FIRE)

    def doubt(self, now_ms: int) -> str | None:
        """Return why the record will probably not be delivered; None: no reason is known."""
        _, kind, _, _, payload, refusal = self._entry(0, now_ms)
        if kind == INVALID:
            code, detail = refusal[:2]
            unless = _UNLESS.get(code, "") if self._rules is None else ""
            return f"it will be dead-lettered ({code}): {detail}{unless}"
        if kind != SCHEDULE:
            return None
        try:
            _first_ms(payload, now_ms)
        except RecordRefusedError as exc:
            return f"it will be dead-lettered ({exc.code}): {exc.detail}"
        denial = self._allowlist().denial(payload[0])
        if denial is not None:
            return f"it will be dead-lettered at its due time ({TARGET_DENIED}): {denial}"
        return self._missing_target(payload[0])

    def _allowlist(self) -> Allowlist:
        topic = self._record.topic
        if self._rules is not None:
            return allowlist_for(self._rules, topic)
        return Allowlist(topic, ["*"], reserved_topics(self._settings))

    def _missing_target(self, target: str) -> str | None:
        try:
            admin = admin_client(self._settings.kafka.client_config("admin"))
            found = topic_ids(admin, [target])
        except (KafkaEdgeError, KafkaException):  # who may write here may have no rights there
            return None
        return None if found else f"its target {target} does not exist (yet)"

    def due_ms(self, report: DeliveryReport) -> int | None:
        """Return when the written record is due, epoch ms; None: never, or that is not known."""
        _, kind, _, _, payload, _ = self._entry(report.offset, report.timestamp_ms)
        if kind != SCHEDULE:
            return None
        try:
            return _first_ms(payload, report.timestamp_ms)
        except RecordRefusedError:
            return None


def _first_ms(payload: Payload, written_ms: int) -> int | None:
    recurrence = recurrence_of(payload[6])
    if recurrence is None or not recurrence.cron:
        return payload[5]
    return first_ms(recurrence, written_ms, cron_time)


def _node_settings(settings: Settings) -> Settings | None:
    # Those of the node on this machine, if it serves the same cluster.
    if not settings.admin.listen:
        return None
    try:
        told: dict[str, Any] = connect(settings, timeout_s=_ASK_S).get("/v1/config")
        if told["kafka"]["bootstrap"] != settings.kafka.bootstrap:
            return None
        rules = {name: told[name] for name in ("topics", "levels", "targets", "delivery", "wheel")}
        return Settings.model_validate({**rules, "node": {"store": told["node"]["store"]}})
    except (DelayServiceError, ValidationError, KeyError, TypeError):
        return None


@contextmanager
def hearing(
    settings: Settings, wait_ms: int | None
) -> Iterator[Callable[[DeliveryReport], str | None]]:
    """Read new outcomes while the ``with`` block runs, which writes a control record. Yields a
    function that takes its delivery report, and returns the name of its outcome (``cancelled``,
    ``not_pending`` ...); None: no outcome was read in time.
    """
    if wait_ms is None:
        yield lambda _: None
        return
    options = settings.kafka.client_config
    admin = admin_client(options("admin"))
    client = ControlClient(
        options("producer"), options("consumer"), admin, settings.topics.outcomes
    )
    with client.listen() as outcomes:

        def outcome_of(report: DeliveryReport) -> str | None:
            place = RecordPlace(report.topic, report.partition, report.offset)
            return outcomes.of([place], wait_ms / 1_000, replaces=False).get(place)

        yield outcome_of


def write(settings: Settings, record: Outgoing, partition: int) -> DeliveryReport:
    """Write the record and wait for the broker to confirm it. ``KafkaEdgeError``: it refuses the
    record, or does not answer.
    """
    client = {
        **settings.kafka.client_config("producer"),
        # Errors that matter are raised; warnings before them would mislead.
        "log_level": "2",
        "partitioner": "murmur2_random",
    }
    sent = {"topic": record.topic, "key": record.key, "value": record.value}
    try:
        (message,) = write_confirmed(
            client, [{**sent, "headers": record.headers, "partition": partition}], TIMEOUT_S
        )
    except KafkaException as exc:
        error = error_of(exc)
        raise KafkaEdgeError(
            f"{record.topic}: the record was not confirmed: {error.str()} ({error.name()})"
        ) from exc
    except BufferError as exc:
        raise KafkaEdgeError(f"{record.topic}: the record does not fit into the queue") from exc
    return _report(message)


def choose_partition(settings: Settings, record: Outgoing) -> int:
    """Return the partition of the record; -1: the key chooses. ``KafkaEdgeError``: no broker
    answers, or there is no such topic or partition.
    """
    options = {**settings.kafka.client_config("producer"), "log_level": "2"}
    admin = admin_client(options)
    try:
        count = partitions_of(admin, record.topic, TIMEOUT_S)
    except KafkaException as exc:
        raise KafkaEdgeError(
            f"no broker answers at {options['bootstrap.servers']}: {admin.explain(exc)}"
        ) from exc
    if record.partition is not None:
        if record.partition >= count:
            raise KafkaEdgeError(f"{record.topic} has partitions 0 to {count - 1} only")
        return record.partition
    return _ANY_PARTITION if record.record_id is None else partition_for(record.record_id, count)


def _report(message: Message) -> DeliveryReport:
    return DeliveryReport(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
    )
