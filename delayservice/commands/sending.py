"""Writes one record into a delay topic, and foresees what the service will do with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import typer
from confluent_kafka import KafkaException
from pydantic import ValidationError

from connectors.kafka.clients import admin_client, partitions_of
from connectors.kafka.controls import ControlClient, Written
from connectors.kafka.log_ends import ASK_TIMEOUT_S
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
from delayservice.contract.entry import (
    CANCEL,
    FIRE,
    INVALID,
    Entry,
    Headers,
    NewRecord,
    scheduled,
)
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.contract.recurrence import first_ms, recurrence_of
from delayservice.contract.targets import Allowlist

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


class Doubt(NamedTuple):
    """Why a record will not be delivered; ``is_certain``: as far as the settings are known."""

    why: str
    is_certain: bool


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

    def doubt(self, now_ms: int) -> Doubt | None:
        """Return why the record will not be delivered; None: no reason is known."""
        entry = self._entry(0, now_ms)
        if entry[1] == INVALID:
            code, detail = entry[5][:2]
            unless = _UNLESS.get(code, "") if self._rules is None else ""
            why = f"it will be dead-lettered ({code}): {detail}{unless}"
            return Doubt(why, is_certain=not unless)
        payload = scheduled(entry)
        if payload is None:
            return None
        try:
            _first_ms(payload, now_ms)
        except RecordRefusedError as exc:
            return Doubt(f"it will be dead-lettered ({exc.code}): {exc.detail}", is_certain=True)
        target = payload[0]
        denial = self._allowlist().denial(target)
        if denial is not None:
            why = f"it will be dead-lettered at its due time ({TARGET_DENIED}): {denial}"
            return Doubt(why, is_certain=True)
        if self._is_missing(target):
            return Doubt(f"its target {target} does not exist (yet)", is_certain=False)
        return None

    def _allowlist(self) -> Allowlist:
        topic = self._record.topic
        if self._rules is not None:
            return allowlist_for(self._rules, topic)
        return Allowlist(topic, ["*"], reserved_topics(self._settings))

    def _is_missing(self, target: str) -> bool:
        try:
            admin = admin_client(self._settings.kafka.client_config("admin"))
            return not topic_ids(admin, [target])
        except (KafkaEdgeError, KafkaException):  # who may write here may have no rights there
            return False

    def due_ms(self, offset: int, written_ms: int) -> int | None:
        """Return when the written record is due, epoch ms; None: never, or that is not known."""
        payload = scheduled(self._entry(offset, written_ms))
        if payload is None:
            return None
        try:
            return _first_ms(payload, written_ms)
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


def write(
    settings: Settings, record: Outgoing, partition: int, wait_ms: int | None
) -> tuple[Written, str | None]:
    """Write a record, by the partitioner of Java where its key chooses. Return also the outcome of
    a control record, such as ``cancelled``; None: it was not read in ``wait_ms``, or not awaited.
    """
    options = settings.kafka.client_config
    writer = {**options("producer"), "partitioner": "murmur2_random"}
    admin = admin_client(options("admin"))
    client = ControlClient(writer, options("consumer"), admin, settings.topics.outcomes)
    sent = [NewRecord(record.topic, partition, record.key, record.value, record.headers)]
    if wait_ms is None:
        return client.write(sent)[0], None
    with client.listen() as outcomes:
        (written,) = client.write(sent)
        told = outcomes.of([written.place], wait_ms / 1_000, replaces=False)
    return written, told.get(written.place)


def choose_partition(settings: Settings, record: Outgoing) -> int:
    """Return the partition of the record; -1: the key chooses. ``KafkaEdgeError``: no broker
    answers, or there is no such topic or partition.
    """
    options = settings.kafka.client_config("producer")
    admin = admin_client(options)
    try:
        count = partitions_of(admin, record.topic, ASK_TIMEOUT_S)
    except KafkaException as exc:
        raise KafkaEdgeError(
            f"no broker answers at {options['bootstrap.servers']}: {admin.explain(exc)}"
        ) from exc
    if record.partition is not None:
        if record.partition >= count:
            raise KafkaEdgeError(f"{record.topic} has partitions 0 to {count - 1} only")
        return record.partition
    return _ANY_PARTITION if record.record_id is None else partition_for(record.record_id, count)
