"""The records of the repair topic: commands to the nodes, and their answers. JSON.

``scan``          read the copy of a shard from the disk, and publish a cut after that
``detail``        write the keys, marks and hashes of a range, to be compared record by record
``rebuild``       put a range aside and read it again from the delay topic
``rebuild_copy``  start the store of a shard over from the delay topic; replicas only

The one who carries out a plan writes its commands, one after another, and waits for the reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

VERSION: Final = 1

Verb = Literal["scan", "detail", "rebuild", "rebuild_copy"]

DetailRow = tuple[int, int, int, str]
"""``(key_ms, offset, mark, hash)``; the hash, 16 hexadecimal digits, is that of the payload."""


class Command(msgspec.Struct, frozen=True, tag_field="kind", tag="command", kw_only=True):
    """One step of a plan, for one node and one shard.

    Attributes:
        plan: the plan's id; the key of every record about it.
        step: number of the step; an answer names it.
        command: what is to be done.
        node: who is to do it.
        topic: the delay topic.
        partition: its partition.
        start_ms: first key of the range, epoch milliseconds.
        stop_ms: end of the range.
        first_offset: of the first record that belongs in the range.
        stop_offset: end of these offsets, for people: a node reads on to the end of the log, for
            what cancels them may lie anywhere. 0: not known.
        expires_ms: not to be begun later than this.
        topic_id: id of the delay topic that is meant; a node that serves another one of that name
            refuses. Empty: any.
        replica_only: the owner of the slice refuses.
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
    """Result of a step; the last answer to it.

    Attributes:
        plan: as in the command.
        step: as in the command.
        node: who reports.
        status: whether it was done.
        detail: why not, or what was done, for people.
        frames: records that were read or rebuilt.
        at_ms: the node's clock.
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
    """Some of the records of a range, as the node has them.

    Attributes:
        plan: as in the command.
        step: as in the command.
        node: whose copy it is.
        topic: the delay topic.
        partition: its partition.
        rows: in key order, over all details of a step.
        last: whether that was all.
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
    """Message to bytes."""
    return _encode(message)


def decode_message(data: bytes) -> Message | None:
    """Bytes to message; None: no message of this version, which a reader skips."""
    try:
        message = _decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return message if message.v == VERSION else None
