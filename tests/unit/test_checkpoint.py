"""Checkpoints as they lie in the topic, their order, and what their reader answers."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from unittest.mock import patch

import pytest

from connectors.kafka import checkpoints
from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.sink import WriterOptions
from delayservice.base.clock import SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import (
    UNKNOWN_STANDING,
    Checkpoint,
    ForeignRecordError,
    LastRead,
    Lost,
    ShardCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    fingerprint,
    longest_waits_ms,
    standing_of,
)
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor
from delayservice.engine.ports import PolledBatch, ReadBack

CONTRACTS = Contracts([(0, Contract()), (40, Contract(clamp=True))])
SHARDS = {"delay_topic_any": ShardCheckpoint("id", Cursor((5, 7), 42), CONTRACTS)}


def checkpoint(tenure: Tenure) -> Checkpoint:
    return Checkpoint(3, "n1", 7, fingerprint(b"secret"), SHARDS, 42, tenure)


def test_a_checkpoint_reads_as_written() -> None:
    tenure = Tenure("delayservice-n1-0-5c", 17)
    assert decode_checkpoint(encode_checkpoint(checkpoint(tenure))) == checkpoint(tenure)


def test_a_checkpoint_holds_the_last_read_record_if_it_is_known() -> None:
    shard = replace(SHARDS["delay_topic_any"], last_read=LastRead(5, 77))
    said = replace(checkpoint(Tenure("w", 17)), shards={"delay_topic_any": shard})
    raw = json.loads(encode_checkpoint(said))
    assert raw["v"] == 1
    assert raw["shards"]["delay_topic_any"]["last"] == [5, 77]
    assert decode_checkpoint(encode_checkpoint(said)) == said
    del raw["shards"]["delay_topic_any"]["last"]  # not known
    assert decode_checkpoint(json.dumps(raw).encode()) == checkpoint(Tenure("w", 17))
    assert json.loads(encode_checkpoint(checkpoint(Tenure("w", 17)))) == raw


def test_a_checkpoint_names_its_writer_and_the_claim_under_which_it_served() -> None:
    raw = json.loads(encode_checkpoint(checkpoint(Tenure("w", 17))))
    assert (raw["v"], raw["writer"], raw["claim"]) == (1, "w", 17)
    assert (raw["slice"], raw["epoch"], raw["commit"]) == (3, 7, 42)
    assert raw["shards"]["delay_topic_any"]["h"] == 42


def test_a_newer_version_is_not_guessed_at() -> None:
    data = encode_checkpoint(checkpoint(Tenure("w", 1))).replace(b'"v":1', b'"v":2')
    with pytest.raises(KafkaEdgeError, match=r"version 2, .* version 1: upgrade this node"):
        decode_checkpoint(data)


@pytest.mark.parametrize("lacks", ["writer", "claim", "commit", "slice", "secret", "shards"])
def test_a_checkpoint_that_lacks_something_is_none(lacks: str) -> None:
    raw = json.loads(encode_checkpoint(checkpoint(Tenure("w", 1))))
    del raw[lacks]
    with pytest.raises(KafkaEdgeError, match="no checkpoint"):
        decode_checkpoint(json.dumps(raw).encode())


FOREIGN = b'{"v":1,"slice":1,"node":"n","epoch":1,"secret":"s","shards":[]}'


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b'"v"', b'"\xff"', FOREIGN])
def test_a_foreign_checkpoint_is_reported_by_writer(data: bytes) -> None:
    with pytest.raises(KafkaEdgeError, match="something else writes"):
        decode_checkpoint(data)


def test_how_long_a_log_must_keep_records_follows_from_all_contracts_in_force() -> None:
    def slice_of(number: int, *windows_ms: int) -> bytes:
        contracts = [(n, Contract(roll_window_ms=ms)) for n, ms in enumerate(windows_ms)]
        level = Contracts([(0, Contract(level_ms=5_000))])
        shards = {
            "delay_topic_any": ShardCheckpoint("id", Cursor(), Contracts(contracts)),
            "delay_topic_1": ShardCheckpoint("id", Cursor(), level),
        }
        return encode_checkpoint(Checkpoint(number, "n1", 1, "", shards, 1, Tenure("w", 0)))

    foreign = [b"{}", b"foreign", b"\xff", b'"\xff"', b'{"shards":[1]}', b'{"shards":{"t":1}}']
    waits = (b"7", b'{"level_ms":[9]}', b'{"roll_window_ms":"x"}', b'{"roll_window_ms":{}}')
    foreign += [b'{"shards":{"t":{"contracts":[{"contract":%b}]}}}' % one for one in waits]
    found = longest_waits_ms([slice_of(0, 60_000, 7_000), slice_of(1, 9_000), *foreign])
    assert found == {"delay_topic_any": 60_000, "delay_topic_1": 5_000}


def test_lost_ranges_come_back_and_take_no_room_where_there_are_none() -> None:
    shard = ShardCheckpoint("id", Cursor(), Contracts([(0, Contract())]))
    assert b'"lost"' not in encode_checkpoint(
        Checkpoint(0, "n1", 1, "", {"t": shard}, 1, Tenure("w", 0))
    )
    lossy = replace(shard, lost=(Lost(3, 9), Lost(20, 31)))
    data = encode_checkpoint(Checkpoint(0, "n1", 1, "", {"t": lossy}, 1, Tenure("w", 0)))
    assert decode_checkpoint(data).shards["t"].lost == lossy.lost


# --- which records of the checkpoint topic can be a slice's checkpoint, and in which order --------


SHARD_OF_FOUR = {
    "delay_topic_any": ShardCheckpoint("id", Cursor((5, 6), 7), Contracts([(0, Contract())]))
}


def written(epoch: int = 3, commit: int = 9) -> bytes:
    tenure = Tenure("writer", 17)
    return encode_checkpoint(Checkpoint(4, "n1", epoch, "secret", SHARD_OF_FOUR, commit, tenure))


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
def test_checkpoints_are_ordered_by_commit(earlier: bytes, later: bytes, *, precedes: bool) -> None:
    assert standing_of(4, earlier).precedes(standing_of(4, later)) is precedes


# --- what the tail of the checkpoint topic answers other threads ----------------------------------


SLICE = 3
OPTIONS = WriterOptions(
    name_prefix="n1",
    checkpoint_topic="checkpoints",
    checkpoint_partitions=1,
    claims_topic="claims",
    producer={},
    consumer={},
)


def test_a_slice_whose_doubt_ends_while_it_is_asked_for_does_not_begin_anew() -> None:
    tail = KafkaCheckpoints(OPTIONS, SystemClock(), "n1")
    tail._tailed[SLICE] = ReadBack(b"{}", 0, 0, 7)
    tail._foreign[SLICE] = (8, "a tombstone")

    def resolved(asked: KafkaCheckpoints, *_: int) -> bool:
        asked._foreign.clear()  # the owner has written its checkpoint again
        return True

    with (
        patch.object(KafkaCheckpoints, "_is_doubtful", resolved),
        pytest.raises(KafkaEdgeError, match="tried again"),
    ):
        tail.newest(SLICE, 1.0)


def test_earlier_checkpoints_are_added_only_while_no_other_thread_reads() -> None:
    tail = KafkaCheckpoints(OPTIONS, SystemClock(), "n1")
    tail._starts[0] = (0, 9)
    value = encode_checkpoint(Checkpoint(SLICE, "n1", 1, "secret", {}, 1, Tenure("writer", 1)))
    is_read = threading.Event()

    def scanned(*_: object) -> list[PolledBatch]:
        is_read.set()
        return [PolledBatch(("checkpoints", 0), 0, [(7, 0, b"%d" % SLICE, value, None)], 9)]

    with patch.object(checkpoints, "scan_partition", scanned):
        searching = threading.Thread(target=tail._search_earlier)
        with tail._changed:
            searching.start()
            assert is_read.wait(60)
            searching.join(0.1)
            assert not tail._tailed
        searching.join()
    assert tail.newest_of_all() == [value]
