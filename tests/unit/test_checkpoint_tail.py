"""What the tail of the checkpoint topic answers other threads."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest

from connectors.kafka import checkpoints
from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.sink import WriterOptions
from delayservice.base.clock import SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.checkpoint import Checkpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.ports import PolledBatch, ReadBack

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
