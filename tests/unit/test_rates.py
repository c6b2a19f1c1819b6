"""Limits of targets and of seconds, as the settler carries them out."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any
from unittest.mock import create_autospec

import pytest

from delayservice.contract.codec import Payload, turn_of
from delayservice.contract.codes import TARGET_ASKED, TARGET_LATER, TARGET_REFUSED
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.contract.recurrence import Recurrence, encode
from delayservice.contract.requeue import read_copy
from delayservice.engine import outcome
from delayservice.engine.cursor import Cursor
from delayservice.engine.flow import AHEAD_MS, BURST_MS, Flow, FlowRules, SlotPolicy
from delayservice.engine.outcome import Output
from delayservice.engine.ports import Bounds, PolledBatch, Source
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.slices.lane import Lane
from tests.unit.known_targets import KnownTargets, some
from tests.unit.lanes import routes_of, window_of

TOPIC, PARTITION = "delay_topic_any", 3
SECRET = b"secret"
NOW_MS = 1_900_000_000_000
TICK_MS = 10


def payload(target: str = "orders", due_ms: int = NOW_MS, value: bytes = b"v") -> Payload:
    return (target, -1, None, value, [], due_ms, None)


def copied(output: Output) -> tuple[int, Payload]:
    """Key and payload of a copy, as whoever reads the delay topic understands it."""
    copy = some(read_copy(TOPIC, PARTITION, (SECRET,), (output[3], output[4], output[5])))
    return copy[1], copy[2]


@dataclass
class World:
    """A delay topic's partition and its owner, without anything between them."""

    flow: Flow
    verdicts: Verdicts = field(default_factory=Verdicts)
    targets: KnownTargets = field(default_factory=KnownTargets)
    window_ms: int = 3_600_000
    now_ms: int = NOW_MS
    pending: list[tuple[int, int, Payload]] = field(default_factory=list)
    outputs: list[tuple[int, Output]] = field(default_factory=list)
    offset: int = 0

    def __post_init__(self) -> None:
        """The settler of the first owner."""
        self.fail_over(self.flow)

    def fail_over(self, flow: Flow) -> None:
        """Another owner, who has read all copies."""
        self.flow = flow
        self.settler = Settler(
            TOPIC,
            PARTITION,
            routes_of(self.window_ms, 100, 1_000),
            self.verdicts,
            self.targets,
            flow,
        )
        for _, _, pending in self.pending:
            turn_ms = turn_of(pending[6])
            if turn_ms is not None:
                flow.observe(pending[0], turn_ms, self.now_ms)

    def append(self, key_ms: int, pending: Payload) -> None:
        self.offset += 1
        heapq.heappush(self.pending, (key_ms, self.offset, pending))

    def turn(self) -> list[Output]:
        """Settle what is due, in key order, and stage it."""
        outputs = []
        while self.pending and self.pending[0][0] <= self.now_ms:
            key_ms, offset, pending = heapq.heappop(self.pending)
            output = some(self.settler.settle(offset, key_ms, pending, self.now_ms, offset + 1))
            outputs.append(output)
        return outputs

    def commit(self, outputs: Iterable[Output]) -> None:
        self.flow.commit(self.now_ms)
        for output in outputs:
            self.outputs.append((self.now_ms, output))
            if output[0] in outcome.COPIES:
                self.append(*copied(output))

    def abort(self, before: list[tuple[int, int, Payload]]) -> None:
        self.flow.abort()
        self.pending = before

    def run(self, until_ms: int) -> None:
        while self.now_ms < until_ms:
            self.commit(self.turn())
            self.now_ms += TICK_MS

    def delivered(self) -> list[tuple[int, bytes | None]]:
        return [(at, out[4]) for at, out in self.outputs if out[0] == outcome.DELIVERED]

    def kinds(self) -> Counter[int]:
        return Counter(output[0] for _, output in self.outputs)


def limited(rate: float, *more: tuple[str, float]) -> Flow:
    # A policy without a cap limits nothing.
    return Flow(FlowRules((*more, ("orders*", rate)), slot_policy="dead-letter"))


def capped(count: int, policy: SlotPolicy) -> Flow:
    return Flow(FlowRules(slot_records_max=count, slot_policy=policy))


def burst(world: World, count: int, **more: int) -> None:
    for number in range(count):
        world.append(NOW_MS, payload(value=b"%d" % number, due_ms=more.get("due_ms", NOW_MS)))


# --- rates ---------------------------------------------------------------------------------------


def test_a_limited_target_does_not_hold_up_another() -> None:
    world = World(limited(1))
    burst(world, 100)
    world.append(NOW_MS, payload("others", value=b"other"))
    world.commit(world.turn())
    assert (NOW_MS, b"other") in world.delivered()


def test_the_first_pattern_that_matches_counts_and_nought_is_no_limit() -> None:
    flow = limited(1, ("orders-bulk", 0.0), ("orders-fast", 1_000.0))
    flow.observe("orders-bulk", NOW_MS + 1_000, NOW_MS)  # written before the limit was taken away
    for target, late in (("orders-bulk", False), ("orders-fast", False), ("orders-x", True)):
        turns = [flow.turn_ms(target, NOW_MS, NOW_MS) for _ in range(20)]
        assert any(turn is not None for turn in turns) is late


def test_a_turn_that_is_near_goes_at_once_but_overtakes_nobody() -> None:
    flow = limited(100)  # 10 ms apart
    turns = [flow.turn_ms("orders", NOW_MS, NOW_MS) for _ in range(7)]
    assert turns == [*[None] * 6, NOW_MS + AHEAD_MS + 10]
    later_ms = NOW_MS + 20  # the next turn is 50 ms away, and one was given to a copy before it
    assert flow.turn_ms("orders", later_ms, later_ms) == NOW_MS + AHEAD_MS + 20
    flow = limited(100)  # of the next owner, who has read a copy
    flow.observe("orders", later_ms, NOW_MS)
    assert flow.turn_ms("orders", NOW_MS, NOW_MS) == later_ms + 10


def test_a_replica_forgets_turns_that_have_passed_and_keeps_the_others() -> None:
    flow = limited(1)
    flow.observe("orders", NOW_MS + 60_000, NOW_MS)
    for number in range(5_000):
        written_ms = NOW_MS + number * TICK_MS
        flow.observe(f"orders-{number}", written_ms + 1_000, written_ms)
    assert len(flow._next_ms._committed) < 2_000
    assert len(flow._moved_ms._committed) < 2_000
    assert flow.turn_ms("orders", written_ms, written_ms) == NOW_MS + 61_000


def test_a_delivery_at_once_puts_off_one_whose_turn_passed_in_an_outage() -> None:
    flow = limited(10)
    assert sum(flow.may_go("orders", NOW_MS) for _ in range(20)) == 11
    assert flow.turn_ms("orders", NOW_MS, NOW_MS) is None
    assert not flow.may_go("orders", NOW_MS + 100)


def test_a_copy_keeps_due_time_attempt_id_and_expiry() -> None:
    world = World(limited(0.1))
    meta = (b"id", b"source", 3, NOW_MS + 60_000)
    record: Payload = ("orders", 2, b"k", b"v", [("own", b"1")], NOW_MS, meta)
    world.flow.turn_ms("orders", NOW_MS, NOW_MS)
    world.append(NOW_MS, record)
    (output,) = world.turn()
    key_ms, again = copied(output)
    assert output[0] == outcome.PACED
    assert key_ms == NOW_MS + 10_000
    assert again == (*record[:6], (*meta, None, NOW_MS + 10_000))


@pytest.mark.parametrize("recurrence", [(), (encode(Recurrence(every_ms=5_000)),)])
def test_a_parked_record_still_recurs_and_asks_for_a_new_turn(
    recurrence: tuple[bytes, ...],
) -> None:
    world = World(limited(1))
    world.targets.why["orders", -1] = ("target-unknown", "")
    meta: Any = (b"id", b"source#1", 1, None, *(recurrence or (None,)), NOW_MS)
    parked = some(
        world.settler.settle(1, NOW_MS, ("orders", -1, None, b"v", [], NOW_MS, meta), NOW_MS, 2)
    )
    assert copied(parked)[1][6] == (b"id", b"source#1", 2, None, *recurrence)


def test_a_turn_beyond_the_roll_window_is_kept_over_several_copies() -> None:
    world = World(limited(0.1), window_ms=3_000)
    burst(world, 2)
    world.run(NOW_MS + 12_000)
    assert [at for at, _ in world.delivered()] == [NOW_MS, NOW_MS + 10_000]
    assert world.kinds()[outcome.PACED] == 4


def test_an_occurrence_that_waits_for_its_turn_is_followed_by_the_next_one() -> None:
    world = World(limited(1))
    world.flow.turn_ms("orders", NOW_MS, NOW_MS)
    meta = (None, b"source#1", 1, None, encode(Recurrence(every_ms=5_000)))
    world.append(NOW_MS, ("orders", -1, None, b"v", [], NOW_MS, meta))
    (output,) = world.turn()
    _, waiting = copied(output)
    assert world.settler.following(output, 1, waiting, NOW_MS, 2) is None
    delivered = some(world.settler.settle(2, NOW_MS + 1_000, waiting, NOW_MS + 1_000, 3))
    again = some(world.settler.following(delivered, 2, waiting, NOW_MS + 1_000, 3))
    key_ms, next_one = copied(again)
    assert (key_ms, next_one[5]) == (NOW_MS + 5_000, NOW_MS + 5_000)
    assert turn_of(next_one[6]) is None


def test_where_no_copy_can_be_written_there_is_no_limit() -> None:
    world = World(limited(1))
    world.settler.requeuer.topic = None
    burst(world, 10)
    world.commit(world.turn())
    assert world.kinds() == {outcome.DELIVERED: 10}


RECURS: Payload = (
    *payload()[:6],
    (None, b"source#1", 1, None, encode(Recurrence(every_ms=5_000))),
)


@pytest.mark.parametrize(
    ("flow", "record", "then"),
    [
        (limited(1), payload(), outcome.PACED),
        (limited(1), RECURS, outcome.PACED),
        (capped(1, "spread"), payload(), outcome.PACED),
        (capped(2, "spread"), RECURS, outcome.DELIVERED),
        (capped(2, "dead-letter"), RECURS, outcome.DELIVERED),
    ],
)
def test_what_can_not_be_requeued_takes_no_turn_and_no_place(
    flow: Flow, record: Payload, then: int
) -> None:
    world = World(flow)
    world.targets.why[TOPIC, PARTITION] = ("target-unavailable", "")
    delivered = some(world.settler.settle(1, NOW_MS, payload(), NOW_MS, 2))
    assert delivered[0] == outcome.DELIVERED, "what needs no copy does not wait"
    for _ in range(20):
        assert world.settler.settle(2, NOW_MS, record, NOW_MS, 3) is None
    flow.commit(NOW_MS)
    assert flow.over_cap == 0
    world.targets.why.clear()
    output = some(world.settler.settle(2, NOW_MS, record, NOW_MS, 3))
    assert output[0] == then
    assert then == outcome.DELIVERED or copied(output)[0] == NOW_MS + 1_000


@pytest.mark.parametrize(
    ("asked", "code"),
    [("obstacle", TARGET_ASKED), ("obstacle", TARGET_LATER), ("refusal", TARGET_LATER)],
)
def test_a_record_over_the_cap_waits_while_the_dead_letter_topic_takes_none(
    monkeypatch: pytest.MonkeyPatch, asked: str, code: str
) -> None:
    world = World(capped(1, "dead-letter"))
    assert some(world.settler.settle(1, NOW_MS, payload(), NOW_MS, 2))[0] == outcome.DELIVERED
    letters = world.settler.routes.dead_letter
    answers = {letters: (code, ""), (letters, -1): (code, "")}
    monkeypatch.setattr(world.targets, asked, lambda place, *_: answers.get(place))
    assert world.settler.settle(2, NOW_MS, payload(), NOW_MS, 3) is None
    monkeypatch.undo()
    letter = some(world.settler.settle(2, NOW_MS, payload(), NOW_MS, 3))
    world.flow.commit(NOW_MS)
    assert world.flow.over_cap == 1
    assert (letter[0], dict(letter[5])["delay-error"]) == (outcome.DEAD_LETTERED, b"slot-full")


def test_a_record_over_the_cap_is_put_off_where_the_dead_letter_topic_refuses_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(capped(1, "dead-letter"))
    assert some(world.settler.settle(1, NOW_MS, payload(), NOW_MS, 2))[0] == outcome.DELIVERED
    answers = {world.settler.routes.dead_letter: (TARGET_REFUSED, "it is compacted")}
    monkeypatch.setattr(world.targets, "refusal", lambda topic, *_: answers.get(topic))
    assert some(world.settler.settle(2, NOW_MS, payload(), NOW_MS, 3))[0] == outcome.PARKED


def test_a_fire_waits_for_no_turn() -> None:
    world = World(limited(1))
    burst(world, 5)
    world.commit(world.turn())
    fired = some(world.settler.fire(9, payload(due_ms=NOW_MS + 60_000), NOW_MS, 10))
    assert fired[0] == outcome.FIRED


def test_targets_and_seconds_that_have_passed_are_forgotten() -> None:
    flow = Flow(FlowRules((("*", 1.0),), 1, "spread"))
    for number in range(2_000):
        now_ms = NOW_MS + 4_000 * number
        flow.turn_ms(f"orders-{number}", now_ms, now_ms)
        flow.second_ms(TOPIC, now_ms, now_ms)
        flow.commit(now_ms)
    assert len(flow._intervals_ms) < 2_000
    assert len(flow._next_ms._committed) < 2_000
    assert len(flow._taken._committed) < 2_000


def test_a_level_topic_is_rate_limited_through_the_precise_topic() -> None:
    for park_topic, delivered in ((TOPIC, 1), (None, 10)):
        lane = Lane(
            *("delay_topic_1", PARTITION, "id"),
            window_of(park_topic=partial(next, repeat(park_topic))),
            create_autospec(Source, instance=True),
            routes_of(3_600_000, 100, 1_000),
            KnownTargets(),
            limited(1),
        )
        lane.adopt(Contracts([(0, Contract(level_ms=1_000))]))
        lane.take_over(Cursor(), Bounds(0, 10))
        headers: Headers = [("delay-target-topic", b"orders")]
        rows: list[PolledRecord] = [
            (n, NOW_MS - 1_000, None, b"%d" % n, headers) for n in range(10)
        ]
        lane.ingest(PolledBatch(("delay_topic_1", PARTITION), 0, rows, 10))
        outputs = [one for chunk in lane.settle_due(NOW_MS, 100, 10**6) for one in chunk]
        kinds = Counter((output[0], output[1]) for output in outputs)
        assert kinds[outcome.DELIVERED, "orders"] == delivered
        assert kinds[outcome.PACED, TOPIC] == 10 - delivered
        turns = [copied(output)[0] for output in outputs if output[0] == outcome.PACED]
        assert turns == [NOW_MS + 1_000 * n for n in range(1, 11 - delivered)]


# --- seconds -------------------------------------------------------------------------------------


def test_a_second_with_ten_times_its_records_is_spread_over_ten_seconds() -> None:
    world = World(capped(100, "spread"))
    burst(world, 1_000)
    world.run(NOW_MS + 15_000)
    per_second = Counter((at - NOW_MS) // 1_000 for at, _ in world.delivered())
    assert per_second == dict.fromkeys(range(10), 100)
    times = Counter(at for at, _ in world.delivered() if at >= NOW_MS + 1_000)
    assert max(times.values()) == 1, "evenly in each second"
    assert world.flow.over_cap == 900


def test_late_records_go_at_once_for_the_seconds_after_have_passed_too() -> None:
    world = World(capped(10, "spread"))
    burst(world, 50, due_ms=NOW_MS - 60_000)
    world.pending = [(NOW_MS - 60_000, offset, record) for _, offset, record in world.pending]
    world.commit(world.turn())
    assert world.kinds() == {outcome.DELIVERED: 50}


def test_records_far_behind_take_no_places_of_the_rate() -> None:
    # A day's seconds, each too full, would be searched and remembered one by one.
    flow = capped(10, "spread")
    for number in range(1_000):
        assert flow.second_ms(TOPIC, NOW_MS - 100_000 - number % 50 * 1_000, NOW_MS) is None
    assert not flow._taken._staged


def test_accept_only_counts() -> None:
    world = World(capped(10, "accept"))
    burst(world, 50)
    outputs = world.turn()
    assert world.flow.over_cap == 0
    world.commit(outputs)
    assert (world.kinds(), world.flow.over_cap) == ({outcome.DELIVERED: 50}, 40)


def test_dead_letter_refuses_what_is_beyond() -> None:
    world = World(capped(10, "dead-letter"))
    burst(world, 12)
    world.commit(world.turn())
    codes = [dict(out[5])["delay-error"] for _, out in world.outputs if out[0] == 1]
    assert codes == [b"slot-full"] * 2
    assert len(world.delivered()) == 10
    late_ms = NOW_MS - 100_000  # a refused record takes no place in the next second
    places = [world.flow.second_ms(TOPIC, ms, NOW_MS) for ms in [late_ms] * 11 + [late_ms + 1_000]]
    assert places == [*[None] * 10, late_ms, None]


@pytest.mark.parametrize("policy", ["spread", "dead-letter", "accept"])
def test_an_abort_gives_places_back(policy: SlotPolicy) -> None:
    flow = capped(3, policy)
    first = [flow.second_ms(TOPIC, NOW_MS, NOW_MS) for _ in range(10)]
    flow.abort()
    assert [flow.second_ms(TOPIC, NOW_MS, NOW_MS) for _ in range(10)] == first
    flow.commit(NOW_MS)
    assert flow.over_cap == 7


def test_shards_have_seconds_of_their_own() -> None:
    flow = capped(1, "dead-letter")
    assert [flow.second_ms(f"delay_topic_{n}", NOW_MS, NOW_MS) for n in range(3)] == [None] * 3


def test_turns_that_passed_while_nobody_served_are_no_burst() -> None:
    world = World(limited(100))
    burst(world, 1_000)
    world.run(NOW_MS + 2_000)
    world.now_ms += 5_000
    resumed_ms = world.now_ms
    world.fail_over(limited(100))
    world.run(resumed_ms + 13_000)
    times = [at for at, _ in world.delivered()]
    assert len(times) == 1_000
    for since_ms in range(resumed_ms, resumed_ms + 10_000, 500):
        went = sum(since_ms <= at < since_ms + 2_000 for at in times)
        assert went <= 2 * 100 + 100 * BURST_MS / 1_000 + 2
    assert times[-1] <= resumed_ms + 9_000
