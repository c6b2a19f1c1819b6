"""What the tail answers a take-over when its newest checkpoint is in doubt."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from connectors.kafka.checkpoints import KafkaCheckpoints
from delayservice.base.clock import SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import ReadBack

SLICE = 3


def test_a_slice_whose_doubt_ends_while_it_is_asked_for_does_not_begin_anew() -> None:
    tail = KafkaCheckpoints("checkpoints", 1, "claims", {}, SystemClock(), "n1")
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
