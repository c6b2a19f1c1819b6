"""``delayservice send``: write one record into a delay topic, with its delivery report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.kafka.clients import FORCED, UNREACHABLE, admin_client, partitions_of
from connectors.kafka.controls import ControlClient
from connectors.kafka.outcomes import RecordPlace
from connectors.kafka.topic_facts import topic_ids
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.commands.console import instant
from delayservice.config.contract import allowlist_for, contract_for, reserved_topics
from delayservice.config.settings import Settings
from delayservice.contract import names
from delayservice.contract.codes import TARGET_DENIED, RecordRefusedError
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import INVALID, SCHEDULE
from delayservice.contract.input_headers import CANCEL_OP, FIRE_OP
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.contract.targets import Allowlist
from delayservice.contract.times import parse_checked_instant_ms, parse_duration_ms

TIMEOUT_S = 15.0
# Partition number that makes librdkafka choose the partition.
_ANY_PARTITION = -1

Header: TypeAlias = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Record to write to a delay topic. ``partition`` None: that of its id, or else of its key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None
    record_id: bytes | None


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """Confirmation of the broker; on a delay topic, the timestamp is the time of the append."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def time_header(at: str | None, after: str | None) -> list[Header]:
    # Checked here, so that a typo causes no dead letter.
    if at is not None and after is not None:
        raise DelayServiceError("give --at or --after, not both")
    if at is not None:
        return [(names.DELAY_AT, str(instant_ms("--at", at)).encode())]
    if after is not None:
        return [(names.DELAY_AFTER, str(delay_ms("--after", after)).encode())]
    return []


def operation(record_id: str | None, *, cancel: bool, fire: bool) -> str | None:
    if cancel and fire:
        raise DelayServiceError("give --cancel or --fire, not both")
    asked = CANCEL_OP if cancel else FIRE_OP if fire else None
    if asked is not None and not record_id:
        raise DelayServiceError(f"--{asked} needs --id: it says which record")
    return asked


def milliseconds(option: str, text: str | None) -> str | None:
    # Decimal digits, for a header.
    return None if text is None else str(delay_ms(option, text))


def instant_ms(option: str, text: str) -> int:
    """Parse a time (epoch milliseconds or RFC 3339) into epoch milliseconds. Raises
    ``DelayServiceError`` if it is invalid, has no zone, or looks like seconds.
    """
    try:
        return parse_checked_instant_ms(option, text.strip().encode())
    except RecordRefusedError as exc:
        raise DelayServiceError(exc.detail) from exc


def delay_ms(option: str, text: str) -> int:
    """Parse a duration (with units, ISO 8601 or in milliseconds) into milliseconds."""
    try:
        return parse_duration_ms(option, text.strip().encode())
    except RecordRefusedError as exc:
        raise DelayServiceError(exc.detail) from exc


def read_value(value: str | None, value_file: Path | None, *, null: bool) -> bytes | None:
    # Without an argument and a file, or with ``-``, the value is read from standard input.
    if (value is not None) + (value_file is not None) + null > 1:
        raise DelayServiceError("give a value, --value-file or --null, only one of them")
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
        raise DelayServiceError("no value: give one, --value-file, --null, or pipe it in")
    return sys.stdin.buffer.read()


def doubt(settings: Settings, record: Outgoing, now_ms: int) -> str | None:
    """Return why the service will probably not deliver a record; None: no reason is known. Settings
    without ``[targets]``, as those of a client, allow any target.
    """
    # Without homes, because the partition of the record is not known yet.
    contract = replace(contract_for(settings, record.topic), id_partitions=0)
    contracts = Contracts([(0, contract)])
    reader = RecordReader(record.topic, 0, contracts, [])
    entry = reader.read(0, now_ms, record.key, record.value, list(record.headers))
    if entry[1] == INVALID:
        code, detail = entry[5][:2]
        return f"it will be dead-lettered ({code}): {detail}"
    if entry[1] != SCHEDULE:
        return None
    denial = _allowlist(settings, record.topic).denial(entry[4][0])
    if denial is not None:
        return f"it will be dead-lettered at its due time ({TARGET_DENIED}): {denial}"
    return _missing_target(settings, entry[4][0])


def _allowlist(settings: Settings, topic: str) -> Allowlist:
    if settings.targets:
        return allowlist_for(settings, topic)
    return Allowlist(topic, ["*"], reserved_topics(settings))


def _missing_target(settings: Settings, target: str) -> str | None:
    try:
        found = topic_ids(admin_client(settings.kafka.client_config("admin")), [target])
    except (KafkaEdgeError, KafkaException):  # a user who may write here may have no rights there
        return None
    return None if found else f"its target {target} does not exist (yet)"


@contextmanager
def hearing(
    settings: Settings, wait_s: float | None
) -> Iterator[Callable[[DeliveryReport], str | None]]:
    """Read new outcomes while the ``with`` block runs, which writes a control record. Yields a
    function that takes its delivery report, and returns the name of its outcome (``cancelled``,
    ``not_pending`` ...); None: no outcome was read in time.
    """
    if wait_s is None:
        yield lambda _: None
        return
    options = settings.kafka.client_config
    admin = admin_client(options("admin"))
    desk = ControlClient(options("producer"), options("consumer"), admin, settings.topics.outcomes)
    with desk.listen() as outcomes:

        def outcome_of(report: DeliveryReport) -> str | None:
            place = RecordPlace(report.topic, report.partition, report.offset)
            return outcomes.of([place], wait_s, replaces=False).get(place)

        yield outcome_of


def send(
    config: dict[str, str], record: Outgoing, on_ready: Callable[[], object] = lambda: None
) -> DeliveryReport:
    """Write the record and wait for the broker to confirm it. ``on_ready`` is called when the
    cluster has answered, before the record is written.

    Raises:
        KafkaEdgeError: no broker answers, the topic is unknown, or the broker refuses the record.
    """
    done: list[tuple[KafkaError | None, Message]] = []
    troubles: list[KafkaError] = []
    try:
        producer = Producer(
            {
                "message.timeout.ms": str(int(TIMEOUT_S * 1_000)),
                # Errors that matter are raised; warnings before them would mislead.
                "log_level": "2",
                **config,
                **FORCED,
                "error_cb": troubles.append,
                "acks": "all",
                "enable.idempotence": "true",
                "partitioner": "murmur2_random",
            }
        )
        partition = _choose_partition(producer, record, config["bootstrap.servers"], troubles)
        on_ready()
        producer.produce(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            on_delivery=lambda error, message: done.append((error, message)),
            partition=_ANY_PARTITION if partition is None else partition,
        )
        producer.flush()
    except KafkaException as exc:
        raise KafkaEdgeError(f"{record.topic}: {_words(exc.args[0])}") from exc
    except BufferError as exc:
        raise KafkaEdgeError(f"{record.topic}: the record does not fit into the queue") from exc
    return _report(record.topic, done)


def _choose_partition(
    producer: Producer, record: Outgoing, bootstrap: str, troubles: Sequence[KafkaError]
) -> int | None:
    # None: the key chooses.
    try:
        count = partitions_of(producer, record.topic, TIMEOUT_S)
    except KafkaException as exc:
        producer.poll(0)  # delivers the reason to the error callback
        reasons = [error for error in troubles if error.code() in UNREACHABLE]
        why = _words(reasons[-1] if reasons else exc.args[0])
        raise KafkaEdgeError(f"no broker answers at {bootstrap}: {why}") from exc
    if record.partition is not None:
        if record.partition >= count:
            raise KafkaEdgeError(f"{record.topic} has partitions 0 to {count - 1} only")
        return record.partition
    return None if record.record_id is None else partition_for(record.record_id, count)


def _report(topic: str, done: list[tuple[KafkaError | None, Message]]) -> DeliveryReport:
    if not done:
        raise KafkaEdgeError(f"{topic}: the broker has not answered; the record may be there")
    error, message = done[0]
    if error is not None:
        raise KafkaEdgeError(f"{topic}: the broker refused the record: {_words(error)}")
    partition, offset = message.partition(), message.offset()
    return DeliveryReport(topic, partition or 0, offset or 0, message.timestamp()[1])


def _words(error: object) -> str:
    return f"{error.str()} ({error.name()})" if isinstance(error, KafkaError) else str(error)


def due_text(headers: Sequence[Header], timestamp_ms: int) -> str | None:
    """Return the due time that headers give, as ISO 8601 text in UTC; None: they give none.
    ``timestamp_ms``: the broker's append time, epoch milliseconds.
    """
    by_name = dict(headers)
    try:
        if names.DELAY_AT in by_name:
            due_ms = int(by_name[names.DELAY_AT])
        elif names.DELAY_AFTER in by_name:
            due_ms = timestamp_ms + int(by_name[names.DELAY_AFTER])
        else:
            return None
    except ValueError:  # given with --header, in a form that only the service reads
        return None
    return instant(due_ms, "T", zone="+00:00")
