"""Retention deleted what was not read or not settled: what is stored is delivered all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.record import RecordReader
from delayservice.contract.requeue import write_copy
from delayservice.engine.checkpoint import LastRead, Lost, skipped
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import (
    CANCELLED,
    DELIVERED,
    FIRED,
    NOT_PENDING,
    PARKED,
    ROLLED,
    Output,
)
from delayservice.engine.ports import Bounds, Place, PolledBatch
from delayservice.engine.settle import Settler
from delayservice.engine.undelivered import Verdicts
from delayservice.store.base import Store
from tests.rocks import LoneRocks
from tests.unit.lanes import TOPIC, QuietSource, lane_of, log_moved, read_again, routes_of
from tests.wheels import LoneStore

PLACE = (TOPIC, 0)
WRITTEN_MS = 1_700_000_000_000
DUE_MS = WRITTEN_MS + 1_000
ROUTES = routes_of(3_600_000, 5_000_000)
CONTRACTS = Contracts([(0, Contract())])

MakeStore = Callable[[], Store]


@pytest.fixture(params=[LoneStore, LoneRocks])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    return lambda: cast("Store", request.param(tmp_path / "shard"))


class Log(QuietSource):
    """A partition, its reader, and a lane that serves it."""

    def __init__(self, rows: list[Any], store: Store) -> None:
        self.rows = rows
        self.start = 0
        self.at = -1
        self.epoch = -1
        self.seeks: list[tuple[int, Any]] = []
        self.lane = lane_of(store, self, ROUTES)
        self.lane.adopt(CONTRACTS)

    def seek(self, _place: Place, offset: int, last: object = None) -> None:
        self.at = offset
        self.seeks.append((offset, last))

    def bounds(self, _place: Place = PLACE) -> Bounds:
        return Bounds(self.start, len(self.rows))

    def scan(self, _place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        assert start >= self.start, "that is no longer in the log"
        yield PolledBatch(PLACE, start, self.rows[start:stop], stop)

    def read(self) -> None:
        """Read to the end."""
        while self.at < len(self.rows):
            if self.at < self.start:
                log_moved(self.lane, self.bounds())
            else:
                stop = len(self.rows)
                self.lane.ingest(
                    PolledBatch(PLACE, self.at, self.rows[self.at : stop], stop, self.epoch)
                )
                read_again(self.lane)
                self.at = max(self.at, stop)

    def own(self, h: int = 0, lost: tuple[Lost, ...] = ()) -> None:
        self.lane.take_over(Cursor(offset=h), self.bounds(), lost=lost)

    def settle(self, now_ms: int = DUE_MS) -> list[tuple[int, int, str]]:
        """Settle all that is due: kind, offset and code of a dead letter."""
        outputs: list[Output] = []
        for _ in range(2):  # H may have to skip something before K may go on
            read_again(self.lane)
            outputs += self.lane.settle_late(now_ms, 1_000, lambda: True)
            for chunk in self.lane.settle_due(now_ms, 1_000, 1 << 20):
                outputs += chunk
        self.lane.committed()
        return sorted((out[0], out[7], _code(out)) for out in outputs)


def _code(output: Output) -> str:
    return (dict(output[5]).get("delay-error") or b"").decode()


def schedule(offset: int, record_id: str = "", due_ms: int = DUE_MS) -> Any:
    headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", b"orders")]
    headers += [("delay-id", record_id.encode())] if record_id else []
    return (offset, WRITTEN_MS, None, b"value", headers)


def cancel(offset: int, record_id: str) -> Any:
    headers = [("delay-op", b"cancel"), ("delay-id", record_id.encode())]
    return (offset, WRITTEN_MS, None, None, headers)


def fire(offset: int, record_id: str) -> Any:
    headers = [("delay-op", b"fire"), ("delay-id", record_id.encode())]
    return (offset, WRITTEN_MS, None, None, headers)


def stored(make_store: MakeStore, rows: list[Any]) -> Log:
    """A replica that has stored some records, and was closed."""
    log = Log(rows, make_store())
    log.lane.follow(Cursor())
    log.read()
    log.lane.close()
    return Log(rows, make_store())


def test_controls_lost_unread_settle_nothing_that_is_stored(make_store: MakeStore) -> None:
    log = stored(make_store, [schedule(0, "a"), schedule(1), schedule(2, "b")])
    log.rows += [cancel(3, "a"), cancel(4, "c"), schedule(5)]
    log.start = 5
    with structlog.testing.capture_logs() as told:
        log.own()
    assert [line["event"] for line in told] == ["log_starts_later", "offsets_lost"]
    assert log.lane.checkpoint().lost == (Lost(0, 5),)
    log.read()
    assert log.settle() == [(DELIVERED, o, "") for o in (0, 1, 2, 5)]


def test_a_record_whose_control_expired_unread_is_delivered_on_time(
    make_store: MakeStore,
) -> None:
    later = schedule(1, "b", DUE_MS + 9)
    rows = [schedule(0, "a"), later, cancel(2, "a"), cancel(3, "b"), schedule(4, "b"), schedule(5)]
    log = stored(make_store, rows)
    log.start = 5
    log.own()
    assert log.lane.checkpoint().lost == (Lost(0, 5),)
    log.read()
    assert log.settle() == [
        *((DELIVERED, o, "") for o in (0, 4, 5)),
        (ROLLED, 1, ""),
    ]
    assert log.lane.shard.committed.offset == 6


def test_h_skips_what_is_lost_before_k_goes_on_and_before_all_is_read(
    make_store: MakeStore,
) -> None:
    log = stored(make_store, [schedule(0), schedule(1)])
    log.rows += [schedule(n) for n in range(2, 9)]
    log.start = 4
    log.own()
    assert list(log.lane.settle_due(DUE_MS, 1_000, 1 << 20)) == []
    assert log.settle() == [(DELIVERED, 0, ""), (DELIVERED, 1, "")]
    assert (log.lane.shard.committed.offset, log.lane.shard.stored) == (4, 4)


def test_a_record_settled_by_a_control_lost_here_comes_again(
    make_store: MakeStore,
) -> None:
    rows = [schedule(0, "a"), schedule(1), schedule(2, "b")]
    log = stored(make_store, rows)
    log.rows += [cancel(3, "a"), schedule(4, "c"), cancel(5, "b")]
    log.start = 4
    with structlog.testing.capture_logs() as told:
        log.own(4)
    assert [line["event"] for line in told] == ["log_starts_later"]
    log.read()
    assert log.settle() == [
        *((DELIVERED, o, "") for o in (0, 1, 4)),
        *((CANCELLED, o, "") for o in (2, 5)),
    ]


def test_a_copy_whose_canceller_has_expired_goes_by_what_the_log_holds(
    make_store: MakeStore,
) -> None:
    rows = [schedule(0, "x"), cancel(1, "x"), schedule(2), fire(3, "x")]
    for base, kind in ((1, FIRED), (4, DELIVERED)):
        log = Log([*rows, copy_of(4, base, b"x")], make_store())
        log.start = 3
        log.own(3)
        log.read()
        own = (FIRED if kind == FIRED else NOT_PENDING, 3, "")
        assert log.settle() == sorted([(kind, 4, ""), own])
        log.lane.reset_store()
        log.lane.close()


def test_offsets_skipped_by_an_earlier_owner_stay_in_the_checkpoint(make_store: MakeStore) -> None:
    log = stored(make_store, [schedule(0, "a")])
    log.rows += [cancel(1, "a"), schedule(2)]
    log.start = 2
    log.own(2, (Lost(1, 2),))
    log.read()
    assert log.settle() == [(DELIVERED, 0, ""), (DELIVERED, 2, "")]
    assert log.lane.checkpoint().lost == (Lost(1, 2),)


def copy_of(offset: int, base: int, record_id: bytes) -> Any:
    reader = RecordReader(*PLACE, CONTRACTS, (b"secret",))
    ((_, _, _, _, payload, _),) = reader.read_batch([schedule(0, record_id.decode())])
    key, value, headers = write_copy(
        *PLACE, b"secret", settles=0, source=b"delay_topic_any:0:0", base=base, at_ms=DUE_MS,
        payload=payload,
    )  # fmt: skip
    return (offset, WRITTEN_MS, key, value, headers)


def test_a_copy_that_was_stored_and_that_nothing_has_cancelled_is_delivered(
    make_store: MakeStore,
) -> None:
    log = stored(make_store, [schedule(0), schedule(1), schedule(2), copy_of(3, 1, b"x")])
    log.start = 2
    log.own(2)
    log.read()
    assert log.settle() == [(DELIVERED, n, "") for n in range(4)]


def test_a_first_owner_reports_nothing_that_expired_before_it_came(make_store: MakeStore) -> None:
    log = Log([schedule(n) for n in range(6)], make_store())
    log.start = 4
    log.own(4)
    log.read()
    assert log.settle() == [(DELIVERED, 4, ""), (DELIVERED, 5, "")]
    assert log.lane.checkpoint().lost == ()


def test_a_store_says_of_which_log_it_is(make_store: MakeStore) -> None:
    log = Log([schedule(0), schedule(1)], make_store())
    log.epoch = 7
    log.lane.follow(Cursor())
    log.read()
    log.lane.close()
    again = Log(log.rows, make_store())
    again.lane.follow(Cursor())
    assert again.seeks == [(2, LastRead(7, 1))]
    again.rows.append(schedule(2))
    again.epoch = 7
    again.read()
    again.lane.store.sync()  # as a crash leaves it: the label is older than what is stored
    again.lane.store.close()
    crashed = Log(log.rows, make_store())
    crashed.lane.follow(Cursor())
    assert crashed.seeks == [(3, LastRead(7, 2))], "the client checks all of it"


def test_a_range_that_was_not_walked_to_its_end_goes_over_to_the_next_owner() -> None:
    ranges = skipped((), h=80, log_start=200)
    assert ranges == (Lost(80, 200),)
    assert skipped(ranges, h=200, log_start=200) == ranges
    assert skipped(ranges, h=80, log_start=220) == (Lost(80, 220),)
    assert skipped(ranges, h=150, log_start=220) == (Lost(80, 150), Lost(150, 220))


def test_a_parked_record_waits_no_longer_than_the_log_keeps_it() -> None:
    class Down:
        writable: frozenset[Any] = frozenset()

        def obstacle(self, target: object) -> tuple[str, str] | None:
            return None if target == PLACE else ("target-unknown", "not there")

    settler = Settler(*PLACE, ROUTES, Verdicts(), cast("Any", Down()))
    settler.requeuer.contracts = CONTRACTS
    reader = RecordReader(*PLACE, CONTRACTS, (b"secret",))
    ((_, _, key_ms, _, payload, _),) = reader.read_batch([schedule(0)])
    output = settler.settle(0, key_ms, payload, DUE_MS, 1)
    assert output is not None
    assert output[0] == PARKED
    parked = RecordReader(*PLACE, CONTRACTS, (b"secret",)).read_batch(
        [(9, DUE_MS, output[3], output[4], output[5])]
    )
    assert parked[0][2] == DUE_MS + ROUTES.roll_window_ms
