"""Which records of the checkpoint topic can be a slice's checkpoint, and in which order."""

from __future__ import annotations

import json

import pytest

from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import (
    UNKNOWN_STANDING,
    Checkpoint,
    ForeignRecordError,
    ShardCheckpoint,
    encode_checkpoint,
    standing_of,
)
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor

SHARDS = {"delay_topic_any": ShardCheckpoint("id", Cursor((5, 6), 7), Contracts([(0, Contract())]))}


def written(epoch: int = 3, commit: int = 9) -> bytes:
    tenure = Tenure("writer", 17)
    return encode_checkpoint(Checkpoint(4, "n1", epoch, "secret", SHARDS, commit, tenure))


def test_a_checkpoint_is_believed() -> None:
    assert standing_of(4, written()) == (3, 9)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no checkpoint"),
        (b"\xff\x00", "no checkpoint"),
        (b"[]", "no checkpoint"),
        (b'{"v":1}', "no checkpoint"),
        (written()[:-5], "no checkpoint"),
        (written().replace(b'"h":7', b'"h":"7"'), "no checkpoint"),
        (written().replace(b'"slice":4', b'"slice":5'), "a checkpoint of slice 5"),
    ],
)
def test_a_checkpoint_of_another_slice_is_not_used(data: bytes, what: str) -> None:
    with pytest.raises(ForeignRecordError, match=what):
        standing_of(4, data)


@pytest.mark.parametrize("data", [{"v": 2}, {**json.loads(written()), "v": 2}])
def test_a_newer_version_is_believed_for_newer_builds_to_follow(data: dict[str, object]) -> None:
    assert standing_of(4, json.dumps(data).encode()) == UNKNOWN_STANDING


@pytest.mark.parametrize(
    ("earlier", "later", "precedes"),
    [
        (written(3, 9), written(3, 10), True),
        (written(3, 9), written(4, 1), True),
        (written(3, 9), written(3, 9), False),
        (written(4, 1), written(3, 9), False),
        (written(4, 1).replace(b'"v":1', b'"v":2'), written(3, 9), False),
        (written(4, 1), written(3, 9).replace(b'"v":1', b'"v":2'), False),
    ],
)
def test_checkpoints_are_ordered_by_take_over_and_commit(
    earlier: bytes, later: bytes, *, precedes: bool
) -> None:
    assert standing_of(4, earlier).precedes(standing_of(4, later)) is precedes
