"""Records of the repair topic: commands to nodes, and their answers, as JSON.

``scan``          read the copy of a shard from the disk, and publish its digest after that
``detail``        write the keys, marks and hashes of a range, to be compared record by record
``rebuild``       replace a range by what is read again from the delay topic
``rebuild_copy``  rebuild the whole store of a shard from the delay topic; replicas only

The program that runs a plan writes its commands one after another, and waits for the reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

VERSION: Final = 1

Verb = Literal["scan", "detail", "rebuild", "rebuild_copy"]

DetailRow = tuple[int, int, int, str]
"""``(key_ms, offset, mark, hash)`` of a pending record: its key time in epoch ms, source offset,
offset of its canceller or -1, and hash of its payload in 16 hexadecimal digits."""


class Command(msgspec.Struct, frozen=True, tag_field="kind", tag="command", kw_only=True):
    """Command of one step of a repair plan, for one node and one shard.

    Attributes:
        plan: the plan's id; the key of every record about it.
        step: number of the step; an answer names it.
        command: the kind of the command.
        node: the node that is to carry it out.
        topic: the delay topic.
        partition: its partition.
        start_ms: first key of the range, epoch milliseconds.
        stop_ms: exclusive end of the range, epoch milliseconds.
        first_offset: offset of the first record that belongs to the range.
        stop_offset: end of the range's offsets, for people: a node reads to the end of the log,
            because cancellers may lie anywhere. 0: unknown.
        expires_ms: time after which a node must not begin it, epoch milliseconds.
        topic_id: id of the delay topic. A node that serves another topic of that name refuses the
            command. Empty: any topic of that name.
        replica_only: True: a node that owns the slice refuses the command.
        v: version of the format.
    """

    plan: str
    step: int
    command: Verb
    node: str
    topic: str
    partition: int
    start_ms: int = 0
    stop_ms: int = 0
    first_offset: int = 0
    stop_offset: int = 0
    expires_ms: int
    topic_id: str = ""
    replica_only: bool = False
    v: int = VERSION


class Report(msgspec.Struct, frozen=True, tag_field="kind", tag="report", kw_only=True):
    """Result of a step, as the last answer to its command.

    Attributes:
        plan: as in the command.
        step: as in the command.
        node: the node that reports.
        status: ``done`` or ``failed``.
        detail: why it failed, as text for people; empty: it was done.
        frames: number of records that were read or rebuilt.
        at_ms: time by the node's clock, epoch milliseconds.
        v: version of the format.
    """

    plan: str
    step: int
    node: str
    status: Literal["done", "failed"]
    detail: str
    frames: int
    at_ms: int
    v: int = VERSION


class Detail(msgspec.Struct, frozen=True, tag_field="kind", tag="detail", kw_only=True):
    """Part of the records of a range, as a node's copy holds them.

    Attributes:
        plan: as in the command.
        step: as in the command.
        node: the node whose copy it is.
        topic: the delay topic.
        partition: its partition.
        rows: the records; in key order over all details of a step.
        last: whether this is the last detail of the step.
        v: version of the format.
    """

    plan: str
    step: int
    node: str
    topic: str
    partition: int
    rows: Sequence[DetailRow]
    last: bool
    v: int = VERSION


Message = Command | Report | Detail

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


def encode_message(message: Message) -> bytes:
    """Return a message as JSON bytes."""
    return _encode(message)


def decode_message(data: bytes) -> Message | None:
    """Return the message in the JSON bytes ``data``; None: they are no message of this version."""
    try:
        message = _decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return message if message.v == VERSION else None
