"""Records of the repair topic, as JSON: commands to nodes, and what the nodes report.

``scan``          read the copy of a shard from the disk, and publish its digest after that
``detail``        write the keys, marks and hashes of a range's records, in ``Detail`` messages
``rebuild``       replace the records of a range by those read again from the delay topic
``rebuild_copy``  rebuild the whole store of a shard from the delay topic; replicas only

A *range* contains the pending records of one shard whose key times are in ``[start_ms, stop_ms)``.
The program that runs a repair plan writes its commands one after another, and waits for a
``Report`` on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

VERSION: Final = 1

Verb = Literal["scan", "detail", "rebuild", "rebuild_copy"]

# ``(key_ms, offset, mark, hash)`` of a pending record: its key time in epoch ms, its source offset,
# the source offset of its canceller or -1, and the hash of its payload in 16 hexadecimal digits,
# seeded with key time and offset.
DetailRow = tuple[int, int, int, str]


class Command(msgspec.Struct, frozen=True, tag_field="kind", tag="command", kw_only=True):
    """Command of one step of a repair plan, for one node and one shard.

    Attributes:
        plan: id of the plan; the key of all records about it.
        step: number of the step in the plan; ``Report`` and ``Detail`` repeat it.
        command: the verb, such as ``scan``.
        start_ms: first key time of the range, epoch milliseconds; not used by ``scan`` and
            ``rebuild_copy``, like the next three.
        stop_ms: exclusive end of the range, epoch milliseconds.
        first_offset: lowest known source offset of a record in the range; ``rebuild`` reads the log
            from there, or from a lower offset that its copy has in the range.
        stop_offset: exclusive end of the range's source offsets, for people only: a node reads to
            the end of the log, because cancellers may lie anywhere. 0: unknown.
        expires_ms: time after which a node must not begin the command, epoch milliseconds.
        topic_id: Kafka's id of the delay topic. A node whose topic of that name has another id
            refuses the command. Empty: any id.
        replica_only: True: a node that owns the slice refuses the command.
        v: version of the JSON format.
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
    """Last message of a node about a command: whether the command was carried out.

    Attributes:
        status: ``done`` or ``failed``.
        detail: why the command failed, for people; empty: it did not fail.
        frames: number of pending records that ``detail`` listed or ``rebuild`` stored; 0 for other
            commands, or if the command failed.
        at_ms: time of the report by the node's clock, epoch milliseconds.
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
    """Part of the pending records of a command's range, as a node's copy holds them. All ``Detail``
    records of a step together are in key order; the ``last`` one has no rows.
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
    return _encode(message)


def decode_message(data: bytes) -> Message | None:
    """Return the message in the JSON bytes; None: they have another form or version."""
    try:
        message = _decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return message if message.v == VERSION else None
