"""Records of the repair topic, as JSON: requests to nodes about their copies, and the reports.

``records``  report the records of a shard in one hour of due time, at most ``ROWS_MAX``
``scan``     read the copy of a shard from the disk, and publish its digest after that
``rebuild``  rebuild the copy of a shard from the delay topic; replicas only

Who asks writes requests one after another, and waits for a ``Report`` on each.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

VERSION: Final = 1
# Largest number of records in one report, so that it fits in a Kafka record.
ROWS_MAX: Final = 10_000

Verb = Literal["records", "scan", "rebuild"]

# ``(key_ms, offset, mark, hash)`` of a pending record: its key time in epoch ms, its source offset,
# the source offset of its canceller or -1, and the hash of its payload in 16 hexadecimal digits,
# seeded with key time and offset.
RecordHash = tuple[int, int, int, str]


class Command(msgspec.Struct, frozen=True, tag_field="kind", tag="command", kw_only=True):
    """Request to one node about its copy of one shard.

    Attributes:
        plan: id of the repair plan, or of the requests that belong together; the key of all records
            about them.
        step: number of the request in the plan; its ``Report`` repeats it.
        command: the verb, such as ``scan``.
        hour_ms: start of the hour of ``records``, epoch milliseconds; 0 for other verbs.
        expires_ms: time after which a node must not begin the command, epoch milliseconds; set by
            ``RepairClient``, as no report is awaited after it.
        topic_id: Kafka's id of the delay topic. A node whose topic of that name has another id
            refuses the command. Empty: any id.
        v: version of the JSON format.
    """

    plan: str
    step: int
    command: Verb
    node: str
    topic: str
    partition: int
    hour_ms: int = 0
    expires_ms: int = 0
    topic_id: str = ""
    v: int = VERSION


class Report(msgspec.Struct, frozen=True, tag_field="kind", tag="report", kw_only=True):
    """Last message of a node about a command: whether the command was carried out.

    Attributes:
        status: ``done`` or ``failed``.
        detail: why the command failed, for people; empty: it did not fail.
        rows: what ``records`` asked for, in key order.
        has_more: whether the hour has more records than ``rows``.
        at_ms: time of the report by the node's clock, epoch milliseconds.
    """

    plan: str
    step: int
    node: str
    topic: str
    partition: int
    status: Literal["done", "failed"]
    detail: str
    rows: list[RecordHash] = []
    has_more: bool = False
    at_ms: int
    v: int = VERSION


Message = Command | Report

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


def encode_message(message: Message) -> bytes:
    return _encode(message)


def decode_message(data: bytes) -> Message | None:
    """Return the message in the JSON bytes; None: they have another form or version."""
    try:
        message = _decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return message if message.v == VERSION else None


def report_on(
    command: Command,
    why: str,
    at_ms: int,
    rows: list[RecordHash] | None = None,
    *,
    has_more: bool = False,
) -> Report:
    """Return the report on a command; ``why``: reason for a failure, empty if there is none."""
    return Report(
        plan=command.plan,
        step=command.step,
        node=command.node,
        topic=command.topic,
        partition=command.partition,
        status="failed" if why else "done",
        detail=why,
        rows=rows or [],
        has_more=has_more,
        at_ms=at_ms,
    )
