"""Retention deleted what was not read or not settled: what is stored is delivered all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.record import RecordReader
from delayservice.engine.checkpoint import LastRead, Lost, skipped
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import DELIVERED, PARKED, Output
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
        super().__init__()
        self.rows = rows
        self.start = 0
        self.epoch = -1
        self.lane = lane_of(store, self, ROUTES)
        self.lane.adopt(CONTRACTS)

    def bounds(self, _place: Place = PLACE) -> Bounds:
        return Bounds(self.start, len(self.rows))

    def scan(self, _place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        assert start >= self.start, "that is no longer in the log"
        yield PolledBatch(PLACE, start, self.rows[start:stop], stop)

    def read(self) -> None:
        stop = len(self.rows)
        while (at := max(self.position, 0)) < stop:
            if at < self.start:
                log_moved(self.lane, self.bounds())
            else:
                self.lane.ingest(PolledBatch(PLACE, at, self.rows[at:stop], stop, self.epoch))
                read_again(self.lane)
                self.position = max(self.position, stop)

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


def stored(make_store: MakeStore, rows: list[Any]) -> Log:
    """A replica that has stored some records, and was closed."""
    log = Log(rows, make_store())
    log.lane.follow(Cursor())
    log.read()
    log.lane.close()
    return Log(rows, make_store())


def test_h_skips_lost_offsets_before_k_goes_on(make_store: MakeStore) -> None:
    log = stored(make_store, [schedule(0), schedule(1)])
    log.rows += [schedule(n) for n in range(2, 9)]
    log.start = 4
    log.own()
    assert list(log.lane.settle_due(DUE_MS, 1_000, 1 << 20)) == []
    assert log.settle() == [(DELIVERED, 0, ""), (DELIVERED, 1, "")]
    assert (log.lane.shard.committed.offset, log.lane.shard.stored) == (4, 4)


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
