"""The service's own checkpoint, read back, is what the clock is compared with."""

from __future__ import annotations

from delayservice.engine.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.ports import ReadBack
from delayservice.slices.edges import Limits
from tests.unit.loop_stage import Stage


def checkpoint(commit: int) -> Checkpoint:
    return Checkpoint(0, "n1", 1, "secret", {}, commit, Tenure("w", 0))


def test_no_two_checkpoints_are_the_same_even_if_no_cursor_moved() -> None:
    # Else an earlier one, read back late, would seem to be the answer to a later question, and the
    # time that it took would be taken for a wrong clock.
    first, second = (encode_checkpoint(checkpoint(number)) for number in (1, 2))
    assert first != second
    assert decode_checkpoint(second).commit == 2


def test_the_loop_numbers_its_commits() -> None:
    stage = Stage(0)
    stage.own()
    first = stage.sink.checkpoint(0)
    stage.write(0, 0)
    stage.step(10)
    assert stage.delivered() == [(0, 0)]
    assert stage.sink.checkpoint(0).commit == first.commit + 1


def test_an_owner_that_doubts_its_clock_delivers_nothing() -> None:
    stage = Stage(0, 1)
    stage.own()
    stage.write(0, 0)
    stage.clock_watch.reason = "ahead of the broker"
    commits = len(stage.sink.committed)
    for _ in range(30):
        stage.step(100)
    asked = stage.sink.committed[commits:]
    assert len(asked) in {2, 3, 4}
    assert all(len(one.checkpoints) == 1 and not one.outputs for one in asked)
    stage.clock_watch.reason = None
    stage.step(10, 2)
    assert stage.delivered() == [(0, 0)]


def test_the_transaction_that_is_open_when_the_clock_comes_into_doubt_is_dropped() -> None:
    limits = Limits(
        transaction_interval_ms_min=100, transaction_interval_ms_max=100, visible_at_commit=False
    )
    stage = Stage(0, limits=limits)
    stage.own()
    stage.write(0, 0)
    stage.step(1)  # sent, and not to be committed for some time
    assert stage.sink.open_outputs
    stage.clock_watch.reason = "ahead of the broker"
    stage.step(1)
    assert stage.sink.aborted == 1
    assert stage.delivered() == []
    stage.clock_watch.reason = None
    stage.step(100, 6)
    assert stage.delivered() == [(0, 0)]


def test_a_checkpoint_that_is_read_back_seconds_later_is_measured_by_its_own_commit() -> None:
    # Others were sent meanwhile, one a second: each waits for its own way back.
    stage = Stage(0)
    stage.own()
    stage.clock_watch.reason = "ahead of the broker"
    written: list[tuple[float, bytes]] = []

    def hold_back(slice_no: int, value: bytes) -> None:  # noqa: ARG001  # as the method's
        written.append((stage.clock.monotonic_s(), value))

    stage.sink.note_checkpoint = hold_back  # type: ignore[method-assign]
    for _ in range(40):
        stage.step(100)
    assert len(written) >= 4
    stage.clock_watch.answers.clear()
    for sent_s, data in written:
        back = ReadBack(data, int(sent_s * 1000), 0, 9)
        stage.sink.checkpoints[0] = back
        stage.sink.news.add(0)
        stage.step(300)
    answered = stage.clock_watch.answers[: len(written)]
    assert answered == [(int(sent_s * 1000), sent_s) for sent_s, _ in written]
