"""The checkpoint of a slice: the committed cursors of all its shards in one record.

One JSON object, written in the transaction that carries the outputs it accounts for; its fields
are those of ``_Stored``, and ``docs/internals/design.md`` shows one.

``epoch`` counts take-overs of the slice, ``commit`` the commits of one ownership, so each
checkpoint is unique and names its commit. ``secret`` is a fingerprint of the secret by which its
writer signs requeued records: a node without this secret can't verify them, so it stores and serves
nothing of the slice. ``writer`` and ``claim`` name the writer and its claim (see ``claims``).
``last`` is the newest record that the owner had read of the log, which may lie above ``h``: a log
that was truncated and has grown again holds another record there, or no record. ``lost`` are
offsets that H skipped because retention had deleted them. Both are optional. It is JSON because
Spark, metrics and people read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.contract.contracts import ContractError, Contracts
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor, Key

VERSION: Final = 1
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


class ForeignRecordError(DelayServiceError):
    """Record of the checkpoint topic that is not a checkpoint of the slice in the record's key."""


class WrongSecretError(KafkaEdgeError):
    """Slice that is served with a cluster secret which this node does not have."""


class LastRead(NamedTuple):
    """Offset of a record, and epoch of the partition leader that appended it; -1: not known.

    Epochs ascend, so a record that was read before a truncation differs from one written in its
    place. With the offset -1, the epoch is the highest one of the records up to H.
    """

    leader_epoch: int = -1
    offset: int = -1


NOTHING_READ: Final = LastRead()


class Lost(NamedTuple):
    """Offsets ``[first, stop)`` that a new owner skipped, because retention had deleted them.
    ``before``: number of offsets of all earlier ranges, also of those that were dropped.
    """

    first: int
    stop: int
    before: int = 0

    @property
    def in_all(self) -> int:
        return self.before + self.stop - self.first


# The oldest ranges are dropped.
RANGES_MAX: Final = 16


def skipped(ranges: tuple[Lost, ...], h: int, log_start: int) -> tuple[Lost, ...]:
    """Return the lost ranges with ``[h, log_start)`` added, which a new owner skips. An earlier
    one that reaches beyond ``h`` is cut there.
    """
    if h >= log_start:
        return ranges
    earlier = [one._replace(stop=min(one.stop, h)) for one in ranges if one.first < h]
    dropped = ranges[0].before if ranges else 0
    in_all = earlier[-1].in_all if earlier else dropped
    return (*earlier, Lost(h, log_start, in_all))[-RANGES_MAX:]


@dataclass(frozen=True, slots=True)
class ShardCheckpoint:
    """The committed state of one shard."""

    topic_id: str
    """A topic that was deleted and created again has another id."""
    cursor: Cursor
    contracts: Contracts
    last_read: LastRead = NOTHING_READ
    """The newest record that the owner had read; it reveals a later truncation of the log."""
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The committed state of one slice."""

    slice_no: int
    node_id: str
    epoch: int
    """Number of this ownership of the slice."""
    secret_fingerprint: str
    shards: dict[str, ShardCheckpoint]
    commit: int
    """Number of this commit in the ownership."""
    tenure: Tenure


def fingerprint(secret: bytes) -> str:
    """Return 16 hexadecimal digits that identify a secret, but don't reveal it."""
    return hashlib.blake2b(secret, digest_size=8, person=b"delay-secret").hexdigest()


def check_secret(checkpoint: Checkpoint, known: Collection[str]) -> None:
    """Raise ``WrongSecretError`` if this node lacks the secret of a checkpoint's writer.
    ``known`` are fingerprints.
    """
    if checkpoint.secret_fingerprint not in known:
        raise WrongSecretError(
            f"slice {checkpoint.slice_no} is served with another cluster secret (fingerprint "
            f"{checkpoint.secret_fingerprint}) than this node has ({', '.join(known)}). Nothing of "
            "it is stored here, or its rolled and parked records would be taken for forgeries; set "
            "the secret that every node of this cluster uses, and restart this one"
        )


# A default is left out of the JSON.
class _StoredShard(msgspec.Struct, omit_defaults=True):
    topic_id: str
    k: Key
    h: int
    contracts: msgspec.Raw  # of a version that this build may not know
    last: LastRead = NOTHING_READ
    lost: tuple[Lost, ...] = ()


class _Stored(msgspec.Struct):
    v: Literal[1]
    slice: int
    node: str
    writer: str
    claim: int
    epoch: int
    commit: int
    secret: str
    shards: dict[str, _StoredShard]


class _Version(msgspec.Struct):
    v: int


_decode_stored = msgspec.json.Decoder(_Stored).decode
_decode_version = msgspec.json.Decoder(_Version).decode


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    stored = _Stored(
        v=VERSION,
        slice=checkpoint.slice_no,
        node=checkpoint.node_id,
        writer=checkpoint.tenure.writer,
        claim=checkpoint.tenure.claim,
        epoch=checkpoint.epoch,
        commit=checkpoint.commit,
        secret=checkpoint.secret_fingerprint,
        shards={
            topic: _StoredShard(
                topic_id=shard.topic_id,
                k=shard.cursor.key,
                h=shard.cursor.offset,
                contracts=msgspec.Raw(shard.contracts.encode()),
                last=shard.last_read if shard.last_read.leader_epoch >= 0 else NOTHING_READ,
                lost=shard.lost,
            )
            for topic, shard in checkpoint.shards.items()
        },
    )
    return msgspec.json.encode(stored)


class Standing(NamedTuple):
    """Place of a checkpoint in the order of its slice: by ownership, then by commit."""

    epoch: int
    commit: int

    def precedes(self, other: Standing) -> bool:
        """Return whether this checkpoint was certainly written before ``other``."""
        return UNKNOWN_STANDING not in (self, other) and self < other


# Place of a checkpoint of a newer version, which may be the newest one.
UNKNOWN_STANDING: Final = Standing(-1, -1)


def standing_of(slice_no: int, data: bytes) -> Standing:
    """Return a checkpoint's place in the order of its slice; of a newer version
    ``UNKNOWN_STANDING``. Raise ``ForeignRecordError`` if it is no checkpoint of the slice.
    """
    try:
        if _decode_version(data).v > VERSION:
            return UNKNOWN_STANDING
        stored = _decode_stored(data)
    except _UNREADABLE as exc:
        raise ForeignRecordError(f"no checkpoint ({exc})") from exc
    if stored.slice != slice_no:
        raise ForeignRecordError(f"a checkpoint of slice {stored.slice}")
    return Standing(stored.epoch, stored.commit)


def longest_waits_ms(checkpoints: Iterable[bytes]) -> dict[str, int]:
    """Return the longest roll window or level delay, ms, by delay topic: so long must its log
    keep records. Checkpoints that can't be read are skipped.
    """
    longest: dict[str, int] = {}
    for data in checkpoints:
        with suppress(*_UNREADABLE, LookupError, TypeError, ValueError, AttributeError):
            for topic, shard in msgspec.json.decode(data)["shards"].items():
                for contract in [one["contract"] for one in shard["contracts"]]:
                    wait_ms = int(contract.get("level_ms") or contract["roll_window_ms"])
                    longest[topic] = max(longest.get(topic, 0), wait_ms)
    return longest


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return a checkpoint; raise ``KafkaEdgeError`` if it is none or of a newer version: the
    slice must not be served.
    """
    try:
        version = _decode_version(data).v
        if version > VERSION:
            raise KafkaEdgeError(
                f"the checkpoint topic holds version {version}, this build reads version "
                f"{VERSION}: upgrade this node, or the Spark job that reads it"
            )
        stored = _decode_stored(data)
        return Checkpoint(
            slice_no=stored.slice,
            node_id=stored.node,
            epoch=stored.epoch,
            secret_fingerprint=stored.secret,
            shards={
                topic: ShardCheckpoint(
                    topic_id=shard.topic_id,
                    cursor=Cursor(shard.k, shard.h),
                    contracts=Contracts.from_json(msgspec.json.decode(shard.contracts)),
                    last_read=shard.last,
                    lost=shard.lost,
                )
                for topic, shard in stored.shards.items()
            },
            commit=stored.commit,
            tenure=Tenure(stored.writer, stored.claim),
        )
    except ContractError as exc:
        raise KafkaEdgeError(f"the checkpoint can't be followed: {exc}") from exc
    except _UNREADABLE as exc:
        raise KafkaEdgeError(
            f"a record of the checkpoint topic is no checkpoint ({exc!r}); something else writes "
            "to that topic: find it, and restrict the topic to the delay service"
        ) from exc


def decode_checkpoint_of(slice_no: int, data: bytes) -> Checkpoint:
    """Return a slice's checkpoint; raise ``KafkaEdgeError`` also if it is another slice's."""
    checkpoint = decode_checkpoint(data)
    if checkpoint.slice_no != slice_no:
        raise KafkaEdgeError(
            f"the checkpoint of slice {slice_no} is of slice {checkpoint.slice_no}; something else "
            "writes to the checkpoint topic: find it, and restrict the topic to the delay service"
        )
    return checkpoint
