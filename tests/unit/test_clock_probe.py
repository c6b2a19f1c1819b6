"""The service's own checkpoint, read back, is what the clock is compared with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

from delayservice.core.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from delayservice.core.settle import Routes
from delayservice.cron import cron_time
from delayservice.lanes.ports import Observer
from delayservice.lanes.slice_loop import Limits, SliceLoop


def checkpoint(commit: int) -> Checkpoint:
    return Checkpoint(0, "n1", 1, "secret", {}, commit)


def test_no_two_checkpoints_are_the_same_even_if_no_cursor_moved() -> None:
    """Else an earlier one, read back late, would seem to be the answer to a later question, and the
    time that it took would be taken for a wrong clock.
    """
    first, second = (encode_checkpoint(checkpoint(number)) for number in (1, 2))
    assert first != second
    assert decode_checkpoint(second).commit == 2


def test_the_loop_numbers_its_commits() -> None:
    sent: list[bytes] = []
    unused: Any = None
    loop = SliceLoop(
        0,
        node_id="n1",
        source=unused,
        sink=cast("Any", SimpleNamespace(commit=sent.append)),
        checkpoints=unused,
        clock=cast("Any", SimpleNamespace(wall_ms=lambda: 0, monotonic_s=lambda: 0.0)),
        gate=unused,
        observer=create_autospec(Observer, instance=True),
        routes=Routes("dead", "outcomes", b"secret", 1, 0, (), cron_time),
        contract_of=unused,
        limits=Limits(),
    )
    assert loop._commit()
    assert loop._commit()
    assert sent[0] != sent[1]


def test_a_checkpoint_without_the_number_is_read() -> None:
    data = encode_checkpoint(checkpoint(1)).replace(b'"commit":1,', b"")
    assert decode_checkpoint(data).commit == 0
