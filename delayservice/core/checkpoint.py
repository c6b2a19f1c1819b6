"""The checkpoint of a slice: the committed cursors of all its shards in one record.

One JSON object, written in the transaction that carries the outputs it accounts for::

    {"v": 1, "slice": 3, "node": "n1", "epoch": 7, "commit": 42, "secret": "9f0c…",
     "shards": {"delay_topic_any": {"topic_id": "…", "k": [key_ms, offset], "h": offset,
                                    "contracts": [[from_offset, {…}], …]}}}

``epoch`` counts take-overs of the slice, ``commit`` the commits of one: no two checkpoints are the
same, so that one that is read back says which commit it belongs to. ``secret`` is a fingerprint of
the cluster's secret, so that a node with another one refuses to serve instead of dead-lettering
every copy. JSON because Spark, metrics and people read it too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from delayservice.core.contract import ContractError, Contracts
from delayservice.core.cursor import Cursor
from delayservice.errors import KafkaEdgeError

VERSION = 1


@dataclass(frozen=True, slots=True)
class ShardCheckpoint:
    """What is committed of one shard.

    ``contracts`` is the list of parameters that keys depend on (design rule 2); ``topic_id`` tells
    a recreated topic from the one that the offsets belong to.
    """

    topic_id: str
    cursor: Cursor
    contracts: Contracts


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is committed of one slice; ``shards`` is keyed by delay topic."""

    slice_no: int
    node_id: str
    epoch: int
    secret_fingerprint: str
    shards: dict[str, ShardCheckpoint]
    commit: int = 0


def fingerprint(secret: bytes) -> str:
    """A name for a secret that does not give it away."""
    return hashlib.blake2b(secret, digest_size=8, person=b"delay-secret").hexdigest()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Checkpoint to bytes."""
    return msgspec.json.encode(
        {
            "v": VERSION,
            "slice": checkpoint.slice_no,
            "node": checkpoint.node_id,
            "epoch": checkpoint.epoch,
            "commit": checkpoint.commit,
            "secret": checkpoint.secret_fingerprint,
            "shards": {
                topic: {
                    "topic_id": shard.topic_id,
                    "k": shard.cursor.key,
                    "h": shard.cursor.offset,
                    "contracts": shard.contracts.to_json(),
                }
                for topic, shard in checkpoint.shards.items()
            },
        }
    )


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Bytes to checkpoint.

    Raises:
        KafkaEdgeError: not a checkpoint, or of a newer version. The slice must not be served from a
            guess, so nothing is assumed.
    """
    try:
        raw = msgspec.json.decode(data)
        version = raw["v"]
        if version != VERSION:
            raise KafkaEdgeError(
                f"the checkpoint topic holds version {version}, this build reads version {VERSION};"
                " run the newer build, or none on this cluster"
            )
        return Checkpoint(
            slice_no=raw["slice"],
            node_id=raw["node"],
            epoch=raw["epoch"],
            secret_fingerprint=raw["secret"],
            shards={
                topic: ShardCheckpoint(
                    topic_id=shard["topic_id"],
                    cursor=Cursor((shard["k"][0], shard["k"][1]), shard["h"]),
                    contracts=Contracts.from_json(shard["contracts"]),
                )
                for topic, shard in raw["shards"].items()
            },
            commit=raw.get("commit", 0),
        )
    except ContractError as exc:
        raise KafkaEdgeError(f"the checkpoint can't be followed: {exc}") from exc
    except (msgspec.DecodeError, KeyError, TypeError, IndexError) as exc:
        raise KafkaEdgeError(
            f"a record of the checkpoint topic is no checkpoint ({exc!r}); something else writes "
            "to that topic: find it, and restrict the topic to the delay service"
        ) from exc
