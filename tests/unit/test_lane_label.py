"""Labels of stores, by which a restart finds out whether their records are still right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from delayservice.contract.codec import Payload
from delayservice.contract.contracts import Contract, ContractError, Contracts
from delayservice.contract.entry import Headers, PolledRecord
from delayservice.contract.requeue import write_copy
from delayservice.engine.checkpoint import (
    Checkpoint,
    ShardCheckpoint,
    encode_checkpoint,
    fingerprint,
)
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import NO_MARK, Cursor
from delayservice.engine.ports import Bounds, PolledBatch
from delayservice.slices.lane import Lane
from delayservice.slices.store_label import Label
from delayservice.slices.take_over import CONTRACTS_BYTES_MAX, take_over_lane
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from tests.rocks import LoneRocks
from tests.unit.lanes import TOPIC, QuietSource, lane_of, routes_of
from tests.wheels import LoneStore

START_MS = 1_700_000_000_000
SHORT_MS, LONG_MS, DELAY_MS = 10_000, 60_000, 30_000
SHORT, LONG = (Contract(roll_window_ms=ms) for ms in (SHORT_MS, LONG_MS))
OTHER = Contract(roll_window_ms=LONG_MS, max_delay_ms=LONG_MS)

MakeStore = Callable[[], Store]


def run(start: int, stop: int) -> PolledBatch:
    headers: Headers = [("delay-after", b"%d" % DELAY_MS), ("delay-target-topic", b"orders")]
    rows: list[PolledRecord] = [
        (o, START_MS + o, None, b"value", headers) for o in range(start, stop)
    ]
    return PolledBatch((TOPIC, 0), start, rows, stop)


@pytest.fixture(params=[LoneStore, LoneRocks])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    def make() -> Store:
        store: Store = request.param(tmp_path / "shard")
        return store

    return make


def boot(make_store: MakeStore, *secrets: bytes) -> Lane:
    first, *others = secrets or (b"secret",)
    routes = routes_of(LONG_MS, 1_000, secret=first, accepted=tuple(others))
    lane = lane_of(make_store(), QuietSource(), routes)
    lane.follow(Cursor())
    return lane


def read(lane: Lane, stop: int) -> None:
    assert lane.ingest(run(lane.shard.stored, stop)) > 0


def keys(lane: Lane) -> list[tuple[int, int]]:
    return sorted((frame[1], frame[0]) for frame in lane.store.scanner().frames((0, 0), 10**15))


def replica_that_stored(make_store: MakeStore, contracts: Contracts, stop: int) -> None:
    lane = boot(make_store)
    lane.adopt(contracts)
    lane.follow(Cursor())
    if stop:
        read(lane, stop)
    lane.close()


def adopt(lane: Lane, contracts: Contracts) -> None:
    """As a replica does it."""
    lane.adopt(contracts)
    lane.follow(Cursor())


def test_a_contract_only_heard_of_leaves_the_store_right(make_store: MakeStore) -> None:
    first = Contracts([(0, SHORT)])
    replica_that_stored(make_store, first, 10)
    lane = boot(make_store)
    adopt(lane, first.extended(15, LONG))
    lane.close()
    lane = boot(make_store)
    adopt(lane, first.extended(12, OTHER))
    assert lane.shard.stored == 10
    lane.close()


def test_a_store_that_starts_over_is_labelled_anew(make_store: MakeStore) -> None:
    changed = Contracts([(0, SHORT), (6, LONG)])
    replica_that_stored(make_store, Contracts([(0, SHORT)]), 10)
    replica_that_stored(make_store, changed, 8)
    lane = boot(make_store)
    assert lane.contracts == changed
    adopt(lane, changed)
    assert lane.shard.stored == 8
    lane.reset_store()
    lane.follow(Cursor())
    read(lane, 9)
    lane.close()
    lane = boot(make_store)
    adopt(lane, changed)
    assert lane.shard.stored == 9
    lane.close()


@pytest.mark.parametrize("label", [b"", b"rubbish", b"\xff\xfe", b"[]", b'[{"from":0}]'])
def test_a_store_with_an_unreadable_label_starts_over(make_store: MakeStore, label: bytes) -> None:
    store = make_store()
    store.open()
    store.append([(START_MS, 0, NO_MARK, b"")], [], [], 1)
    store.set_label(label)
    store.close()
    lane = boot(make_store)
    assert lane.shard.stored == 1, "nothing is wiped before there is something to put in its place"
    adopt(lane, Contracts([(0, Contract())]))
    assert lane.shard.stored == 0
    lane.close()


def test_a_label_is_written_for_changes_only(make_store: MakeStore) -> None:
    lane = boot(make_store)
    contracts = Contracts([(0, SHORT)])
    adopt(lane, contracts)
    lane.store.set_label(b"kept")
    adopt(lane, Contracts([(0, SHORT)]))
    assert lane.store.label == b"kept"
    adopt(lane, contracts.extended(3, LONG))
    label = Label.decode(lane.store.label)
    secrets = frozenset({fingerprint(b"secret")})
    assert label == Label(contracts.extended(3, LONG), secrets, has_refused=False)
    lane.close()


# --- secrets -------------------------------------------------------------------------------------

PLAIN = Contracts([(0, LONG)])


def signed_run(start: int, secret: bytes) -> PolledBatch:
    """One copy, as an owner signs it."""
    payload: Payload = ("orders", -1, None, b"copied", [], START_MS + DELAY_MS, None)
    copy = write_copy(
        TOPIC, 0, secret, settles=0, source=b"s", base=start, at_ms=payload[5], payload=payload
    )
    return PolledBatch((TOPIC, 0), start, [(start, START_MS, *copy)], start + 1)


def life(make_store: MakeStore, *secrets: bytes, signed: Sequence[bytes] = ()) -> list[int]:
    """One life of a lane that reads a plain record and a copy by each of ``signed``; returns the
    offsets that it kept from lives before.
    """
    lane = boot(make_store, *secrets)
    adopt(lane, PLAIN)
    kept = [offset for offset, _ in keys(lane)]
    if signed:
        read(lane, 1)
    for offset, secret in enumerate(signed, 1):
        assert lane.ingest(signed_run(offset, secret)) == 1
    lane.close()
    return kept


def test_a_store_that_refused_nothing_outlives_its_secrets(make_store: MakeStore) -> None:
    life(make_store, b"old", signed=[b"old"])
    for secrets in ((b"old", b"new"), (b"new", b"old"), (b"new",), (b"other",)):
        assert life(make_store, *secrets) == [0, 1]


def test_a_secret_that_is_forgotten_rebuilds_nothing(make_store: MakeStore) -> None:
    life(make_store, b"new", b"old", signed=[b"old", b"forged"])
    assert life(make_store, b"new") == [0, 1]


def test_a_refused_copy_is_known_of_after_another_contract_too(make_store: MakeStore) -> None:
    life(make_store, b"old", signed=[b"new"])
    lane = boot(make_store, b"old")
    adopt(lane, PLAIN.extended(2, OTHER))
    assert lane.shard.stored == 2
    lane.close()
    lane = boot(make_store, b"new")
    adopt(lane, PLAIN.extended(2, OTHER))
    assert lane.shard.stored == 0
    lane.close()


def test_a_label_is_read_as_it_was_written() -> None:
    for has_refused in (False, True):
        label = Label(PLAIN.extended(10, SHORT), frozenset({"a", "b"}), has_refused)
        assert Label.decode(label.encode()) == label


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"null", b"[]", b"{}", b"\xff", b"\0" * 8, PLAIN.encode()),
        b'{"contracts":[],"secrets":[],"refused":false}',
    ],
)
def test_an_invalid_label_is_an_error(data: bytes) -> None:
    with pytest.raises(ContractError):
        Label.decode(data)


def test_a_label_with_a_contract_of_a_later_version_is_an_error() -> None:
    label = Label(PLAIN, frozenset(), has_refused=False).encode()
    with pytest.raises(ContractError, match="upgrade this node"):
        Label.decode(label.replace(b'"version":1', b'"version":9'))


# --- a change of settings: from which record on it holds, and what it takes in a checkpoint -------


BATCH_BYTES_MAX = 1_000_000
"""About what a broker takes by default."""
LATER_MS = START_MS + 10**9
"""When nothing was written for long."""


def new_lane() -> Lane:
    made = lane_of(MemoryStore(), QuietSource(), routes_of(1, 1_000))
    made.follow(Cursor())
    return made


@pytest.fixture
def lane() -> Lane:
    return new_lane()


def changed(number: int) -> Contract:
    return Contract(max_delay_ms=10**9 + number)


def change(lane: Lane, number: int, log_start: int) -> int:
    """Take over with other settings after one more record; the size of the checkpoint."""
    known = None
    if number:
        read(lane, number)
        known = ShardCheckpoint("id", Cursor(offset=number), lane.contracts)
    take_over_lane(lane, known, Bounds(log_start, number), changed(number), LATER_MS)
    shards = {TOPIC: lane.checkpoint()}
    return len(encode_checkpoint(Checkpoint(0, "node", 1, "secret", shards, 1, Tenure("w", 0))))


def test_contracts_whose_records_the_log_has_lost_are_dropped(lane: Lane) -> None:
    sizes = [change(lane, number, max(0, number - 10)) for number in range(3_000)]
    assert len(lane.contracts.entries()) == 11
    assert max(sizes) < 10_000
    assert lane.contracts.at(2_999) == changed(2_999)
    assert lane.contracts.at(2_990) == changed(2_990)


def test_a_store_outlives_the_contracts_that_are_dropped(lane: Lane) -> None:
    for number in range(20):
        change(lane, number, 0)
    stored = lane.store.stats().pending
    change(lane, 20, 12)
    assert lane.contracts.entries()[0] == (12, changed(12))
    assert lane.store.stats().pending == stored + 1


def test_changes_that_the_checkpoint_has_no_room_for_wait_until_it_has(lane: Lane) -> None:
    with capture_logs() as logged:
        sizes = [change(lane, number, 0) for number in range(3_000)]
    assert max(sizes) < CONTRACTS_BYTES_MAX + 1_000 < BATCH_BYTES_MAX
    (deferred, *_) = [line for line in logged if line["event"] == "contract_deferred"]
    assert deferred["contracts"] == len(lane.contracts.entries()) > 100
    last = lane.contracts.entries()[-1]
    assert last[1] == changed(last[0])
    change(lane, 3_000, last[0])  # retention has deleted the records of all but the last
    assert lane.contracts.entries() == (last, (3_000, changed(3_000)))


def test_contracts_that_are_too_many_by_now_stay_as_they_are(lane: Lane) -> None:
    # An older service wrote them; records need each.
    many = Contracts([(number, changed(number)) for number in range(1_000)])
    assert len(many.encode()) > CONTRACTS_BYTES_MAX
    known = ShardCheckpoint("id", Cursor(), many)
    take_over_lane(lane, known, Bounds(0, 1_000), changed(999), LATER_MS)
    assert lane.contracts == many


def test_replicas_that_hear_of_a_change_under_load_keep_their_stores() -> None:
    # They store on meanwhile by what held before.
    owner, replica = new_lane(), new_lane()
    before = Contracts([(0, changed(1))])
    for lane in (owner, replica):
        lane.adopt(before)
        lane.follow(Cursor())
        lane.ingest(run(0, 3_000))  # a record each millisecond
    known = ShardCheckpoint("id", Cursor(offset=3_000), before)
    replica.ingest(run(3_000, 5_500))
    with capture_logs() as logged:
        take_over_lane(owner, known, Bounds(0, 3_000), changed(2), START_MS + 3_000)
        replica.adopt(owner.contracts)
    assert replica.shard.stored == 5_500
    assert [line["event"] for line in logged] == ["contract_extended"]
    assert owner.contracts.entries() == ((0, changed(1)), (6_000, changed(2)))
    owner.ingest(run(3_000, 7_000))
    replica.ingest(run(5_500, 7_000))
    assert owner.store.stats().pending == replica.store.stats().pending == 7_000


def test_a_change_of_a_log_that_rests_holds_from_its_end_on(lane: Lane) -> None:
    lane.adopt(Contracts([(0, changed(1))]))
    lane.follow(Cursor())
    lane.ingest(run(0, 3_000))
    known = ShardCheckpoint("id", Cursor(), lane.contracts)
    take_over_lane(lane, known, Bounds(0, 3_000), changed(2), LATER_MS)
    assert lane.contracts.entries()[1] == (3_000, changed(2))
