"""A level topic's partition: in the order of the log, never early, and put back when aborted."""

from __future__ import annotations

from itertools import chain
from typing import cast

import pytest

from delayservice.contract.codec import Payload
from delayservice.contract.codes import COPY_FORGED, TIME_INVALID
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.contract.provenance import Provenance
from delayservice.contract.requeue import read_copy, write_copy
from delayservice.engine import outcome
from delayservice.engine.cursor import START_KEY, Cursor
from delayservice.engine.outcome import Output
from delayservice.engine.ports import Bounds, PolledBatch, Source
from delayservice.slices.lane import Lane
from tests.unit.known_targets import KnownTargets
from tests.unit.lanes import QuietSource, routes_of, window_of

TOPIC = "delay_topic_1"
ANY = "delay_topic_any"
NOW_MS = 1_800_000_000_000
LEVEL_MS = 5_000
SECRET = b"a secret of the cluster"
TO_ORDERS: Headers = [("delay-target-topic", b"orders")]
LEVEL = Contract(level_ms=LEVEL_MS)
BLOCKED = ("target-unknown", "not there")


def row(offset: int, written_ms: int = NOW_MS, headers: Headers | None = None) -> PolledRecord:
    return (offset, written_ms, b"key", b"v%d" % offset, TO_ORDERS if headers is None else headers)


class Owned:
    """A shard that this node owns from offset 0 on."""

    def __init__(
        self, *contracts: tuple[int, Contract], records_max: int = 100, bytes_max: int = 10_000
    ) -> None:
        routes = routes_of(60_000, 1_000, 2_000, secret=SECRET)
        self.park_topic: str | None = ANY
        self.targets = KnownTargets()
        self.window = window_of(records_max, bytes_max, lambda: self.park_topic)
        self.lane = Lane(
            TOPIC, 0, "id", self.window, cast("Source", QuietSource()), routes, self.targets
        )
        self.lane.adopt(Contracts(contracts or [(0, LEVEL)]))
        self.lane.take_over(Cursor(), Bounds(0, 0))
        self.shard = self.lane.shard

    def take(self, *rows: PolledRecord, stop: int | None = None) -> None:
        stop = rows[-1][0] + 1 if stop is None else stop
        self.lane.ingest(PolledBatch((TOPIC, 0), self.shard.read, list(rows), stop))

    @property
    def room(self) -> tuple[bool, bool]:
        return self.window.is_full, self.window.is_half_empty

    def settle(self, now_ms: int, limit: int = 1_000) -> list[Output]:
        return list(chain.from_iterable(self.lane.settle_due(now_ms, limit, 10**9)))


def offsets(outputs: list[Output]) -> list[int]:
    return [output[7] for output in outputs]


def code(output: Output) -> str:
    return (dict(output[5])["delay-error"] or b"").decode()


def test_staged_outputs_reserve_the_capacity_of_a_small_target() -> None:
    owned = Owned()
    owned.take(row(0), row(1, NOW_MS + 1))
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert offsets(outputs) == [0]
    assert owned.targets.reserved == outputs


def test_a_record_is_delivered_after_its_level_as_it_was_written() -> None:
    owned = Owned()
    owned.take(row(0), row(1, headers=[("own", b"1"), *TO_ORDERS, ("own", None)]))
    assert owned.settle(NOW_MS + LEVEL_MS - 1) == []
    due = b"%d" % (NOW_MS + LEVEL_MS)
    added = [("delay-due-at", due), ("delay-source", b"delay_topic_1:0:1"), ("delay-settles", b"1")]
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert offsets(outputs) == [0, 1]
    headers = [("own", b"1"), ("own", None), *added]
    assert outputs[1] == (0, "orders", -1, b"key", b"v1", headers, NOW_MS + LEVEL_MS, 1)


def test_records_behind_the_head_wait_for_it_after_a_clock_step() -> None:
    owned = Owned()
    owned.take(row(0, NOW_MS), row(1, NOW_MS + 700), row(2, NOW_MS + 50), row(3, NOW_MS + 60))
    assert offsets(owned.settle(NOW_MS + LEVEL_MS + 100)) == [0]
    assert owned.lane.next_due_ms() == NOW_MS + LEVEL_MS + 700
    assert offsets(owned.settle(NOW_MS + LEVEL_MS + 699)) == []
    assert offsets(owned.settle(NOW_MS + LEVEL_MS + 700)) == [1, 2, 3]
    assert owned.shard.staged == Cursor((NOW_MS + LEVEL_MS + 700, 3), 4)


def test_the_cursor_means_what_rule_1_says() -> None:
    """Else everything would come again when the topic is a level topic no longer."""
    owned = Owned()
    assert owned.shard.committed.key == START_KEY
    dues = {}
    for offset, step_ms in enumerate((0, 30, 10, 10, 90, 20)):
        owned.take(row(offset, NOW_MS + step_ms))
        dues[offset] = NOW_MS + step_ms + LEVEL_MS
    for now_ms in range(NOW_MS + LEVEL_MS, NOW_MS + LEVEL_MS + 100, 7):
        owned.settle(now_ms, limit=2)
        staged = owned.shard.staged
        settled = [o for o, due_ms in dues.items() if staged.has_settled((due_ms, o), -1)]
        assert settled == list(range(staged.offset))


def test_the_cursor_passes_offsets_without_a_record_only_when_their_turn_has_come() -> None:
    owned = Owned()
    owned.take(row(3), stop=9)
    owned.settle(NOW_MS)
    assert owned.shard.staged.offset == 3
    owned.settle(NOW_MS + LEVEL_MS)
    assert owned.shard.staged.offset == 9
    owned.take(stop=12)
    owned.settle(NOW_MS + LEVEL_MS)
    assert owned.shard.staged.offset == 12


def test_it_is_full_by_number_or_size_and_has_room_again_below_half() -> None:
    owned = Owned(records_max=10, bytes_max=1_000)
    owned.take(*(row(offset) for offset in range(9)))
    assert owned.room == (False, False)
    owned.take(row(9))
    assert owned.room == (True, False)
    owned.settle(NOW_MS + LEVEL_MS, limit=4)
    assert owned.room == (False, False)
    owned.settle(NOW_MS + LEVEL_MS, limit=1)
    assert owned.room == (False, True)
    big: PolledRecord = (10, NOW_MS, None, b"x" * 900, TO_ORDERS)
    owned.take(big)
    assert owned.room == (True, False)
    owned.settle(NOW_MS + LEVEL_MS)
    assert owned.room == (True, False), "what is staged may come back, so its bytes count"
    owned.lane.committed()
    assert owned.room == (False, True)


def test_a_changed_delay_holds_for_what_was_written_from_then_on() -> None:
    owned = Owned((0, LEVEL), (2, Contract(level_ms=1_000)))
    owned.take(*(row(offset) for offset in range(4)))
    assert owned.settle(NOW_MS + 1_000) == []
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert [output[6] - NOW_MS for output in outputs] == [5_000, 5_000, 1_000, 1_000]


@pytest.mark.parametrize("written_ms", [-1, 2**60])
def test_a_timestamp_that_can_t_be_holds_nothing_up(written_ms: int) -> None:
    owned = Owned()
    owned.take(row(0, written_ms), row(1, NOW_MS - LEVEL_MS))
    assert owned.lane.next_due_ms() == 0
    outputs = owned.settle(NOW_MS)
    assert code(outputs[0]) == TIME_INVALID
    assert offsets(outputs) == [0, 1]


def test_a_genuine_copy_that_somebody_put_here_is_no_copy_here() -> None:
    owned = Owned()
    payload: Payload = ("orders", -1, None, b"v", [], NOW_MS + 10**9, None)
    key, value, headers = write_copy(
        TOPIC, 0, SECRET, settles=0, source=b"s", base=1, at_ms=NOW_MS, payload=payload
    )
    owned.take((5, NOW_MS, key, value, headers))
    assert code(owned.settle(NOW_MS + LEVEL_MS)[0]) == COPY_FORGED


def test_a_parked_level_record_goes_to_the_precise_topic_with_its_source() -> None:
    owned = Owned()
    owned.take(row(0), row(1, headers=[("delay-target-topic", b"mails")]), row(2))
    owned.targets.why["orders", -1] = BLOCKED
    now_ms = NOW_MS + LEVEL_MS
    outputs = owned.settle(now_ms)
    assert [output[0] for output in outputs] == [outcome.PARKED, 0, outcome.PARKED]
    _, topic, partition, key, value, headers, _, offset = outputs[2]
    assert (topic, partition, offset) == (ANY, 0, 2)
    assert read_copy(TOPIC, 0, (SECRET,), (key, value, headers)) is None, "signed for another"
    copy = read_copy(ANY, 0, (SECRET,), (key, value, headers))
    assert copy is not None
    _, at_ms, payload = copy
    assert at_ms == now_ms + 1_000
    assert payload[5] == now_ms
    assert payload[6] == (None, b"delay_topic_1:0:2", 2, None)
    text = dict(headers)["delay-copy"] or b""
    assert b'"settles":2' in text
    assert b'"shard":"delay_topic_1:0"' in text


def test_a_refused_level_record_is_dead_lettered_and_the_next_delivered() -> None:
    owned = Owned()
    owned.lane.verdicts.refuse([(1, ("too-large", "more than it takes"))])
    owned.take(row(0), row(1), row(2))
    outputs = owned.settle(NOW_MS + LEVEL_MS)
    assert [output[0] for output in outputs] == [0, outcome.DEAD_LETTERED, 0]
    assert code(outputs[1]) == "too-large"
    assert owned.lane.verdicts.refused
    owned.lane.committed()
    assert not owned.lane.verdicts.refused, "it is forgotten with the commit that settles it"


def test_a_record_that_expired_unserved_is_expired() -> None:
    owned = Owned()
    expires: Headers = [*TO_ORDERS, ("delay-expires-at", b"%d" % (NOW_MS + LEVEL_MS))]
    owned.take(row(0, headers=expires), row(1, headers=expires))
    assert [output[0] for output in owned.settle(NOW_MS + LEVEL_MS, limit=1)] == [0]
    assert [output[0] for output in owned.settle(NOW_MS + LEVEL_MS + 1)] == [outcome.EXPIRED]


def test_the_outcome_of_a_parked_copy_names_its_source_partition() -> None:
    """An auditor joins on it: the source is in the level topic, the offset is not."""
    there = Provenance(ANY, 0)
    meta = (None, b"delay_topic_1:0:2", 2, None)
    parked = dict(there.headers(77, NOW_MS, meta))
    assert (parked["delay-settles"], parked["delay-shard"]) == (b"77", b"delay_topic_any:0")
    rolled = there.headers(77, NOW_MS, (None, b"delay_topic_any:0:2", 2, None))
    assert "delay-shard" not in dict(rolled)
    assert "delay-shard" not in dict(there.headers(77, NOW_MS, None))
