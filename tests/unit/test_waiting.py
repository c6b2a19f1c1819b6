"""A worker's loop: what it waits for, its roles and phases, its pace and its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.kafka.source import KafkaSource
from delayservice.base.clock import SystemClock
from delayservice.base.errors import KafkaEdgeError, OwnershipLostError, WriterEndedError
from delayservice.config.settings import Settings
from delayservice.engine.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from delayservice.engine.claims import CLAIM, Tenure, encode_word
from delayservice.engine.estimates import Pacer
from delayservice.engine.flow import FlowRules
from delayservice.engine.ports import Control, PolledBatch, ReadBack, Role
from delayservice.process.observer import MetricsObserver
from delayservice.process.worker_thread import BusyError, Turns, WorkerThread
from delayservice.slices.commit import is_staged
from delayservice.slices.edges import Limits, limits_of
from delayservice.slices.loop import wait_ms_of
from delayservice.slices.ownership import follow_roles
from delayservice.slices.slice import OWNED, SLICE_STEPS, Phase, PhaseError, Step, next_phase
from delayservice.slices.writer import WRITER_STEPS, WriterPhase, WriterStep
from ha.notes import NodeNote
from ha.ownership import Standalone
from ha.placement import SliceFacts
from tests.unit.loop_stage import NOW_MS, TOPIC, Logs, Stage

INTERVAL_MS = 20.0


def owner(
    due_in_ms: int | None, *, visible_at_commit: bool = True, since_commit_ms: int = 5
) -> Stage:
    """An owner with nothing staged that committed ``since_commit_ms`` ago."""
    stage = Stage(
        0,
        limits=Limits(
            transaction_interval_ms_min=INTERVAL_MS,
            transaction_interval_ms_max=INTERVAL_MS,
            visible_at_commit=visible_at_commit,
        ),
    )
    stage.own()
    if due_in_ms is not None:
        stage.write(0, 1_000 + since_commit_ms + due_in_ms)
        stage.step(100)  # walked by H
    stage.step(900)  # and committed
    stage.step()
    assert not is_staged(stage.loop.state)
    if due_in_ms is None:
        stage.loop.state.transaction.last_commit_s = stage.clock.monotonic_s()
    stage.clock.now_ms += since_commit_ms
    return stage


@pytest.mark.parametrize(
    ("due_in_ms", "visible_at_commit", "since_commit_ms", "wait_ms"),
    [
        (None, True, 5, 600.0),
        (100, True, 5, 100.0),  # the record is what is waited for
        (2, True, 5, 15.0),  # nobody would see it before the commit
        (2, True, 50, 2.0),  # a commit may come at once
        (2, False, 5, 2.0),  # at least once: it is seen when it is sent
        (-3, True, 5, 15.0),  # due already, and settled right before the commit
        (-3, True, 50, 0.5),  # due already, and so is a commit
        (-3, False, 5, 0.5),  # due already: no wait
    ],
)
def test_a_turn_waits_for_what_it_can_do_something_about(
    *, due_in_ms: int | None, visible_at_commit: bool, since_commit_ms: int, wait_ms: float
) -> None:
    made = owner(due_in_ms, visible_at_commit=visible_at_commit, since_commit_ms=since_commit_ms)
    assert wait_ms_of(made.loop.state) == pytest.approx(wait_ms, abs=0.01)


def test_staged_records_shorten_the_wait_and_cursors_alone_do_not() -> None:
    stage = owner(None, visible_at_commit=False)
    stage.write(0, 0)
    stage.step()
    assert stage.sink.open_outputs
    assert wait_ms_of(stage.loop.state) == pytest.approx(15.0, abs=0.01)
    stage.step(20)
    stage.write(0, 100_000)
    stage.step()
    assert is_staged(stage.loop.state)
    assert wait_ms_of(stage.loop.state) == pytest.approx(500.0, abs=0.01)


@pytest.mark.parametrize(
    ("role", "wait_ms"),
    [
        (Role.REPLICA, 600.0),  # a change of its role wakes it
        (Role.HEIR, 5.0),  # the slice may be its own in a moment
    ],
)
def test_a_replica_waits_unless_its_role_is_about_to_change(role: Role, wait_ms: float) -> None:
    stage = owner(None)
    stage.add(1)
    stage.gate.says(role, [1])
    stage.step()
    assert wait_ms_of(stage.loop.state) == pytest.approx(wait_ms)


def test_an_owner_without_writer_or_clock_looks_again_soon() -> None:
    without = Stage(0)
    without.step()
    assert wait_ms_of(without.loop.state) == pytest.approx(600.0), "a replica needs none"
    without.sink.refuses_to["open"] = KafkaEdgeError("no broker")
    without.gate.says(Role.OWNER, [0])
    without.step()
    assert wait_ms_of(without.loop.state) == pytest.approx(50.0)
    doubting = owner(None)
    doubting.clock_watch.reason = "ahead"
    assert wait_ms_of(doubting.loop.state) == pytest.approx(50.0)


def test_while_a_helper_is_at_work_its_answer_is_looked_for_soon() -> None:
    stage = owner(None)
    stage.background.holds = True
    stage.write(0, 0)
    stage.step(20)
    assert stage.background.waiting
    assert wait_ms_of(stage.loop.state) == pytest.approx(20.0), "as soon as the next may begin"
    stage.clock.now_ms += 19
    assert wait_ms_of(stage.loop.state) == pytest.approx(2.0)
    stage.background.run()
    stage.step()
    assert wait_ms_of(stage.loop.state) > 100


def test_at_least_once_what_comes_due_during_a_commit_is_sent_as_soon_as_that_ends() -> None:
    stage = owner(None, visible_at_commit=False)
    stage.background.holds = True
    stage.write(0, 0)
    stage.step(20)
    assert stage.background.waiting
    assert wait_ms_of(stage.loop.state) == pytest.approx(2.0)


def test_a_paused_delay_topic_and_a_paused_owner_do_not_spin() -> None:
    held: set[str] = set()
    stage = Stage(0, is_held=held.__contains__)
    stage.own()
    held.add(TOPIC)
    stage.write(0, 0)
    stage.step(20, 3)
    assert stage.delivered() == []
    assert wait_ms_of(stage.loop.state) == pytest.approx(10.0)
    held.clear()
    stage.gate.says(Role.PAUSED, [0])
    stage.step(20, 3)
    assert stage.delivered() == []
    assert wait_ms_of(stage.loop.state) == pytest.approx(10.0)


# --- what other threads have for a worker's loop ends its wait for records at once ----------------


_SOON_S = 5.0
_LONG_S = 60.0


class Blocking(Logs):
    """Nothing comes, and ``poll`` waits much longer than a test does."""

    def __init__(self) -> None:
        super().__init__()
        self._polled = threading.Condition()
        self._woken = threading.Event()

    def poll(self, _timeout_s: float, _limit: int, _gather_s: float = 0.0) -> list[PolledBatch]:
        with self._polled:
            self.polls += 1
            self._polled.notify_all()
        self._woken.wait(_LONG_S)
        self._woken.clear()
        return []

    def wake(self) -> None:
        self._woken.set()

    def await_polls(self, more: int) -> None:
        with self._polled:
            assert self._polled.wait_for(lambda: self.polls >= more, _SOON_S)


def made(logs: Blocking, *slices: int, **more: Any) -> tuple[WorkerThread, Standalone]:
    ownership = Standalone(NodeNote("n1", "", 1, 0, "", ""), 0)
    clock = SystemClock()
    thread = WorkerThread(
        Stage(*slices, logs=logs, **more).loop,
        MetricsObserver(),
        ownership,
        clock,
        _unused,
        cast("Any", SimpleNamespace(close=lambda: None)),
        _unused,
        _unused,
        lambda _: None,
        Turns(),
    )
    return thread, ownership


@contextmanager
def running() -> Iterator[tuple[WorkerThread, Blocking, Standalone]]:
    logs = Blocking()
    thread, ownership = made(logs)
    thread.start()
    logs.await_polls(1)
    try:
        yield thread, logs, ownership
    finally:
        thread.stop()
        assert thread.join(_SOON_S)


# There are no topics.
_unused: Any = None


def test_a_stop_ends_the_wait() -> None:
    with running() as (thread, _, _):
        thread.stop()
        assert thread.join(_SOON_S)


@pytest.mark.parametrize(
    "change",
    [
        lambda _, ownership: ownership.serve([SliceFacts(0, 0, ())]),
        lambda thread, _: thread.want({}),
        lambda thread, _: thread.loop.attend(0),
    ],
    ids=["another role", "other slices to keep", "a command for a copy"],
)
def test_a_new_event_ends_the_wait(change: Callable[[WorkerThread, Standalone], object]) -> None:
    with running() as (thread, logs, ownership):
        polls = logs.polls
        change(thread, ownership)
        logs.await_polls(polls + 1)


@pytest.fixture
def source() -> Iterator[KafkaSource]:
    """The real one; that no broker answers makes no difference to its wait."""
    made = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, None, "waking")  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_wait_of_the_client_ends_when_it_is_woken(source: KafkaSource) -> None:
    threading.Timer(0.1, source.wake).start()
    started_s = time.monotonic()
    assert source.poll(_LONG_S, 10) == []
    assert time.monotonic() - started_s < _SOON_S


def test_one_wake_ends_one_wait_also_one_that_begins_later(source: KafkaSource) -> None:
    source.wake()
    started_s = time.monotonic()
    source.poll(_LONG_S, 10)
    assert time.monotonic() - started_s < _SOON_S
    started_s = time.monotonic()
    source.poll(0.3, 10)
    assert time.monotonic() - started_s > 0.2


def test_the_logs_of_quiet_slices_are_measured_in_turn_and_of_others_each_time() -> None:
    thread, _ = made(Blocking(), *range(6))
    for number in range(1, 6):
        thread._observer.of(number)
        thread._observer.sampled[number].is_quiet = True
    asked = []
    for turn in range(3):
        asked.append(thread.to_measure(2))
        thread.measured(float(turn), {number: {} for number in asked[-1]})
    assert asked == [[0, 1, 2], [0, 3, 4], [0, 1, 5]]


# --- what a worker's loop does with a slice in each role and phase, its pace and its clock --------


SLOW = Limits(
    transaction_interval_ms_min=100,
    transaction_interval_ms_max=100,
    visible_at_commit=False,  # so that a transaction begins before it can be committed
)


@pytest.mark.parametrize("role", [Role.REPLICA, Role.HEIR, Role.PAUSED])
def test_an_owner_that_lost_its_slice_during_the_poll_settles_nothing(role: Role) -> None:
    stage = Stage(3)
    stage.own()
    stage.write(3, 0)
    stage.logs.while_polling = lambda: stage.gate.says(role, [3])
    stage.step(10)
    assert stage.delivered() == []
    assert stage.sink.open_outputs == []


def test_an_owner_that_is_paused_finishes_what_has_begun_and_begins_nothing() -> None:
    stage = Stage(3, limits=SLOW)
    stage.own()
    stage.write(3, 0)
    stage.step(1)
    assert stage.sink.open_outputs, "begun, and not committed yet"
    stage.gate.says(Role.PAUSED, [3])
    stage.write(3, 0)
    stage.step(50, 5)
    assert stage.delivered() == [(3, 0)]
    assert stage.of(3).is_owner
    stage.gate.says(Role.OWNER, [3])
    stage.step(50, 3)
    assert stage.delivered() == [(3, 0), (3, 1)]


def test_an_heir_has_its_writer_open_and_claims_nothing() -> None:
    stage = Stage(3)
    stage.gate.says(Role.HEIR, [3])
    stage.step(10, 3)
    assert stage.sink.opened == ["w1"]
    assert stage.sink.committed == []


def test_a_node_that_is_to_own_nothing_opens_no_writer() -> None:
    stage = Stage(3)
    stage.step(10, 3)
    assert stage.sink.opened == []


def test_nobody_is_fenced_without_the_ensembles_word() -> None:
    stage = Stage(3)
    stage.sink.claims.append((b"3:other", encode_word(3, "other", "n2", CLAIM, 0)))
    stage.heritage.denies = {3}
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 10)
    assert "confirm" in stage.heritage.calls
    assert stage.heritage.fenced == []
    stage.heritage.denies.clear()
    stage.step(200, 10)  # a slice that could not be taken is left alone for a moment
    assert stage.heritage.fenced == ["other"]
    assert stage.of(3).is_owner


def test_a_slice_claimed_for_another_node_is_released_unserved() -> None:
    stage = Stage(3, 4)
    stage.heritage.denies = {3}
    stage.gate.says(Role.OWNER, [3, 4])
    stage.step(10, 2)
    stage.gate.says(Role.REPLICA, [3])
    stage.step(10, 3)
    words = [word for one in stage.sink.committed for word in one.words]
    assert words[:3] == [(3, "claim"), (4, "claim"), (3, "release")]
    assert not stage.of(3).is_owner
    assert stage.of(4).is_owner
    assert 3 not in stage.sink.checkpoints


def test_a_claim_that_is_wanted_no_longer_before_it_is_committed_is_not_made() -> None:
    stage = Stage(3)
    stage.gate.says(Role.HEIR, [3])
    stage.step(10)
    stage.clock_watch.reason = "ahead"  # nothing is committed meanwhile
    stage.background.holds = True
    stage.gate.says(Role.OWNER, [3])
    follow_roles(stage.loop.state)
    assert stage.of(3).phase is Phase.CLAIMING
    stage.gate.says(Role.REPLICA, [3])
    follow_roles(stage.loop.state)
    assert stage.of(3).phase is Phase.REPLICA
    assert not stage.background.waiting


def test_a_failed_take_over_is_left_to_others_and_tried_again() -> None:
    stage = Stage(3)
    stage.heritage.refuses_to["fence"] = KafkaEdgeError("no coordinator")
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 5)
    assert stage.gate.given_up == [(3, "no coordinator")]
    assert stage.of(3).trouble == "no coordinator"
    assert [word for one in stage.sink.committed for word in one.words] == [
        (3, "claim"),
        (3, "release"),
    ]
    stage.step(300, 5)
    assert stage.of(3).is_owner
    assert stage.of(3).trouble == ""


def test_opening_a_writer_is_tried_again_once_a_second() -> None:
    stage = Stage(3)
    stage.gate.says(Role.OWNER, [3])
    for _ in range(2):
        stage.sink.refuses_to["open"] = KafkaEdgeError("give the service Write")
        stage.step(10)
        stage.step(100, 9)
        assert stage.sink.opened == []
        stage.clock.now_ms += 1_000
        assert stage.loop.writer_trouble == "give the service Write"
        stage.gate.says(Role.REPLICA, [3])  # others have the slice
    stage.step(10, 4)
    assert stage.loop.writer_trouble == ""
    stage.gate.says(Role.OWNER, [3])
    stage.step(10, 4)
    assert stage.of(3).is_owner


@pytest.mark.parametrize("is_claim", [True, False], ids=["claim", "first_checkpoint"])
@pytest.mark.parametrize("error", [WriterEndedError, OwnershipLostError, KafkaEdgeError])
def test_a_slice_whose_first_commit_keeps_failing_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], *, is_claim: bool
) -> None:
    stage = Stage(3)
    commit, failed = stage.sink.commit, []

    def fail_first(controls: Sequence[Control]) -> None:
        if is_claim in {bool(control.writer) for control in controls}:
            failed.append(controls)
            raise error("it takes too long")
        commit(controls)

    monkeypatch.setattr(stage.sink, "commit", fail_first)
    stage.gate.says(Role.OWNER, [3])
    for _ in range(100):
        stage.step(100)
        if stage.gate.given_up:
            break
    assert stage.gate.given_up[0] == (3, "it takes too long")
    assert len(failed) <= 4


# --- the phases of a slice and of a writer go by a table each, and nothing else moves them --------


WAY = [Step.CLAIM, Step.FENCE, Step.TAKE, Step.SERVE, Step.RELEASE, Step.STEP_DOWN]


def test_the_way_of_an_owner_leads_from_replica_to_replica() -> None:
    phases = [Phase.REPLICA]
    for step in WAY:
        phases.append(next_phase(SLICE_STEPS, phases[-1], step))
    assert phases == [*Phase, Phase.REPLICA]


def test_every_phase_can_be_left_at_once() -> None:
    assert {next_phase(SLICE_STEPS, phase, Step.STEP_DOWN) for phase in Phase} == {Phase.REPLICA}


def _leads_only_from(
    known: AbstractSet[Any], table: Mapping[Any, Any], phases: Iterable[Any], step: Any
) -> None:
    for phase in phases:
        if phase in known:
            next_phase(table, phase, step)
        else:
            with pytest.raises(PhaseError):
                next_phase(table, phase, step)


@pytest.mark.parametrize("step", Step, ids=lambda step: step.name)
def test_a_step_that_the_table_does_not_have_raises(step: Step) -> None:
    known = {
        Step.CLAIM: {Phase.REPLICA},
        Step.WITHDRAW: {Phase.CLAIMING},
        Step.FENCE: {Phase.CLAIMING},
        Step.TAKE: {Phase.TAKING},
        Step.SERVE: {Phase.TAKEN},
        Step.JOIN: OWNED,
        Step.RELEASE: {Phase.TAKING, Phase.TAKEN, Phase.OWNER},
        Step.STEP_DOWN: set(Phase),
    }[step]
    _leads_only_from(known, SLICE_STEPS, Phase, step)


def test_only_a_committed_claim_leads_to_an_owner() -> None:
    ways = {
        (phase, step)
        for phase, step in product(Phase, Step)
        if phase not in OWNED and _leads_to_owned(phase, step)
    }
    assert ways == {(Phase.TAKING, Step.TAKE), (Phase.TAKING, Step.RELEASE)}


def _leads_to_owned(phase: Phase, step: Step) -> bool:
    try:
        return next_phase(SLICE_STEPS, phase, step) in OWNED
    except PhaseError:
        return False


@pytest.mark.parametrize("step", WriterStep, ids=lambda step: step.name)
def test_only_an_open_writer_without_a_commit_sends_and_commits(step: WriterStep) -> None:
    is_open = {WriterPhase.IDLE, WriterPhase.SENDING}
    known = {
        WriterStep.OPEN: {WriterPhase.NONE},
        WriterStep.OPENED: {WriterPhase.OPENING},
        WriterStep.REFUSED: {WriterPhase.OPENING},
        WriterStep.SEND: is_open,
        WriterStep.COMMIT: is_open,
        WriterStep.COMMITTED: {WriterPhase.COMMITTING},
        WriterStep.LOSE: {*is_open, WriterPhase.COMMITTING},
    }[step]
    _leads_only_from(known, WRITER_STEPS, WriterPhase, step)


# --- pacing ---------------------------------------------------------------------------------------


def test_an_idle_slice_commits_as_often_as_it_may() -> None:
    assert Pacer(20, 100).interval_ms == 20


def test_slow_commits_stretch_the_interval_up_to_its_bound() -> None:
    pacer = Pacer(20, 100)
    for _ in range(50):
        pacer.observe(15)
    assert 22 < pacer.interval_ms <= 22.5
    for _ in range(50):
        pacer.observe(1_000)
    assert pacer.interval_ms == 100


def test_the_interval_shrinks_again_when_commits_are_quick() -> None:
    pacer = Pacer(20, 100)
    for commit_ms in [1_000] * 50 + [1] * 50:
        pacer.observe(commit_ms)
    assert pacer.interval_ms == 20


def test_a_budget_above_the_longest_interval_wins() -> None:
    assert Pacer(500, 100).interval_ms == 500


@pytest.mark.parametrize(
    ("mode", "per_s_max", "interval_ms"),
    [
        ("exactly_once", 200, (20, 90)),
        ("exactly_once", 20, (100, 100)),  # two workers share the budget of the node
        ("at_least_once", 200, (90, 90)),  # a transaction shows no record
        ("at_least_once", 20, (100, 100)),
    ],
)
def test_a_transaction_without_records_is_committed_rarely(
    mode: str, per_s_max: int, interval_ms: tuple[int, int]
) -> None:
    delivery = {
        "mode": mode,
        "transactions_per_s_max": per_s_max,
        "transaction_interval_ms_min": 20,
        "transaction_interval_ms_max": 90,
    }
    limits = limits_of(Settings.model_validate({"delivery": delivery, "node": {"workers": 2}}))
    found = (limits.transaction_interval_ms_min, limits.transaction_interval_ms_max)
    assert found == interval_ms


# --- one thread works, others look while it waits, and never otherwise ----------------------------


def test_others_look_in_a_pause_and_only_then() -> None:
    turns = Turns()
    working, pause, paused, resume = (threading.Event() for _ in range(4))

    def work() -> None:
        with turns.working():
            working.set()
            pause.wait(10)
            with turns.pausing():
                paused.set()
                resume.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    with pytest.raises(BusyError, match="was busy"), turns.looking(0.05):
        pytest.fail("it was working")
    pause.set()
    paused.wait(10)
    with turns.looking(10):
        resume.set()
        thread.join(0.05)
        assert thread.is_alive()  # it can't go on while somebody looks
    thread.join(10)
    with pytest.raises(BusyError, match="has ended"), turns.looking(10):
        pytest.fail("its stores are closed")


def test_a_look_that_fails_does_not_stop_the_work() -> None:
    turns = Turns()
    with turns.working(), turns.pausing():
        with pytest.raises(ValueError, match="odd"), turns.looking(1):
            raise ValueError("odd")
        with turns.looking(1):
            pass


# --- the service's own checkpoint, read back, is what the clock is compared with ------------------


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


def test_the_share_of_a_rate_follows_the_number_of_slices() -> None:
    rules = [FlowRules((("*", 2.0),))]
    thread, _ = made(Blocking(), flow_rules=lambda: rules[-1])
    flow = thread.loop.add_slice(0).flow
    turns = [flow.turn_ms("orders", NOW_MS, NOW_MS) for _ in range(3)]
    rules.append(FlowRules((("*", 1.0),)))
    thread.want({0: {}})
    thread._serve_wanted()
    turns += [flow.turn_ms("orders", NOW_MS, NOW_MS) for _ in range(2)]
    assert turns == [None, *(NOW_MS + ms for ms in (500, 1_000, 1_500, 2_500))]
