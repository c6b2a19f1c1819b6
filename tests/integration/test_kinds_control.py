"""Cancel, replace, fire and expire on a real broker: each outcome, counted, in both stores.

A record of its own id at the end of a batch is a fence: once its outcome is there, everything that
was written before it has had its effect, so what did not happen by then never happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.integration.asked import metrics_of
from tests.integration.bench import Bench, Header, Place, Seen, await_true, now_ms

pytestmark = pytest.mark.quick

WINDOW_MS = 5_000
YEAR_MS = 365 * 86_400_000
CANCEL: Header = ("delay-op", b"cancel")
FIRE: Header = ("delay-op", b"fire")
Fate = tuple[str | None, int]


class Stand:
    """One bench and the service that serves it, life after life."""

    def __init__(self, bench: Bench, store: str) -> None:
        self.bench = bench
        self._store = f"node.store={store}"
        self._fences = 0
        self.service: ServiceProcess = bench.serve(self._store)

    def serve(self) -> None:
        """Begin another life."""
        self.service = self.bench.serve(self._store)

    def name(self, record_id: str) -> Header:
        return ("delay-id", record_id.encode())

    def schedule(self, record_id: str, target: str, delay_ms: int, *more: Header) -> int:
        """Write a record of an id; its offset."""
        headers = self.bench.to(target, delay_ms, self.name(record_id), *more)
        return self.bench.send(headers, value=record_id.encode())[1]

    def control(self, record_id: str, op: Header) -> int:
        """Write a cancel or a fire; its offset."""
        return self.bench.send([self.name(record_id), op])[1]

    def await_fence(self) -> None:
        """Until all that was written so far has had its effect."""
        self._fences += 1
        name = f"fence {self._fences}"
        self.control(name, CANCEL)
        self.bench.await_match(self.bench.outcomes, lambda one: one.header("delay-id") == name)

    def early(self) -> set[float]:
        """What the service itself counts as delivered before its time."""
        return {float(line.split()[-1]) for line in metrics_of(self.service, "delay_early_total ")}

    def fates(self) -> dict[str, list[Fate]]:
        """Every outcome there is: ``(outcome, offset that it settles)`` by id."""
        found: dict[str, list[Fate]] = {}
        for one in self.bench.read_all(self.bench.outcomes):
            fate = (one.header("delay-outcome"), int(one.header("delay-settles") or -1))
            found.setdefault(one.header("delay-id") or "", []).append(fate)
        return found


@pytest.fixture(scope="module", params=["wheel", "rocksdb"])
def stand(
    cluster: EmbeddedCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Stand]:
    sets = ("wheel.slots=60", "wheel.slot_ms=1s", f"delivery.roll_window_ms={WINDOW_MS}")
    folder: Path = tmp_path_factory.mktemp("control")
    with Bench(cluster.bootstrap, folder, sets=sets) as bench:
        stand = Stand(bench, request.param)
        yield stand
        assert stand.early() == {0.0}
        assert stand.service.stop() == 0
        assert stand.service.events("loop_failed") == []
        assert stand.service.events("worker_died") == []


def source(bench: Bench, offset: int) -> str:
    return f"{bench.any}:0:{offset}"


def await_copy(bench: Bench, value: bytes) -> Seen:
    """The copy that a record was rolled to."""
    return bench.await_match(
        bench.any, lambda one: one.value == value and one.header("delay-copy") is not None
    )[-1]


def test_order_decides_in_one_millisecond_too(stand: Stand) -> None:
    bench, target = stand.bench, stand.bench.target("order")
    places: list[Place] = []
    batches = Producer({"bootstrap.servers": bench.bootstrap, "linger.ms": 300})
    late = bench.to(target, YEAR_MS, stand.name("both"))
    soon = bench.to(target, 0, stand.name("early"), ("delay-window-ms", b"0"))
    headers = [
        [stand.name("early"), CANCEL],  # before its schedule
        soon,
        late,
        [stand.name("both"), CANCEL],
        late,
        late,  # replaces the one before
        [stand.name("both"), CANCEL],
        [stand.name("both"), CANCEL],  # a second time
        [stand.name("both"), FIRE],
    ]
    for asked in headers:
        batches.produce(
            bench.any,
            b"v",
            partition=0,
            headers=asked,
            on_delivery=lambda _, one: places.append((0, one.offset() or 0, one.timestamp()[1])),
        )
    batches.flush()
    assert len({appended_ms for _, _, appended_ms in places}) == 1, "one batch, one timestamp"
    stand.await_fence()
    at = [offset for _, offset, _ in places]
    fates = stand.fates()
    assert fates["early"] == [("not_pending", at[0])]
    assert fates["both"] == [
        ("cancelled", at[2]),
        ("cancelled", at[3]),
        ("replaced", at[4]),
        ("cancelled", at[5]),
        ("cancelled", at[6]),
        ("not_pending", at[7]),
        ("not_pending", at[8]),
    ]
    (one,) = bench.read(target, 1)
    assert one.header("delay-source") == source(bench, at[1])


def test_rolled_records_are_cancelled_fired_and_replaced(stand: Stand) -> None:
    bench, target = stand.bench, stand.bench.target("rolled")
    ids = ("roll cancel", "roll fire", "roll replace")
    offsets = {one: stand.schedule(one, target, YEAR_MS) for one in ids}
    copies = {one: await_copy(bench, one.encode()) for one in ids}
    cancel = stand.control("roll cancel", CANCEL)
    fire = stand.control("roll fire", FIRE)
    second = stand.schedule("roll replace", target, 0)
    stand.await_fence()
    fates = stand.fates()
    at = {one: copy.offset for one, copy in copies.items()}
    assert fates["roll cancel"] == [("cancelled", at["roll cancel"]), ("cancelled", cancel)]
    assert fates["roll fire"] == [("fired", fire)]
    assert fates["roll replace"] == [("replaced", at["roll replace"])]
    seen = {one.header("delay-id"): one for one in bench.read(target, 2)}
    assert seen.keys() == {"roll fire", "roll replace"}
    fired = seen["roll fire"]
    assert fired.header("delay-source") == source(bench, offsets["roll fire"])
    assert fired.header("delay-settles") == str(at["roll fire"])
    assert fired.header("delay-fired-by") == str(fire)
    assert seen["roll replace"].header("delay-source") == source(bench, second)


def test_a_fired_record_whose_target_is_missing_does_not_wait_for_its_year(stand: Stand) -> None:
    bench = stand.bench
    target = bench.target_name("missing")
    offset = stand.schedule("no target", target, YEAR_MS)
    fire = stand.control("no target", FIRE)
    stand.await_fence()
    assert stand.fates()["no target"] == [("fired", fire)]
    bench.target("missing")
    (one,) = bench.read(target, 1, 60)
    assert one.header("delay-source") == source(bench, offset)
    assert int(one.header("delay-attempt") or 0) > 1
    assert stand.early() == {0.0}


def test_controls_written_while_no_node_runs_take_effect_once(stand: Stand) -> None:
    bench, target = stand.bench, stand.bench.target("restart")
    before = {one: stand.schedule(one, target, YEAR_MS) for one in ("stop 1", "stop 2", "stop 3")}
    stand.await_fence()
    assert stand.service.stop() == 0
    cancel, fire = stand.control("stop 1", CANCEL), stand.control("stop 2", FIRE)
    expires_ms = now_ms() + 500
    sour = stand.schedule("sour", target, 400, ("delay-expires-at", str(expires_ms)))
    fresh = stand.schedule("fresh", target, 400, ("delay-expires-at", str(now_ms() + YEAR_MS)))
    await_true(lambda: now_ms() > expires_ms, "its time has passed")
    stand.serve()
    stand.await_fence()
    again = stand.control("stop 2", FIRE)
    replaced = stand.schedule("stop 3", target, 0)
    stand.await_fence()
    seen = bench.read(target, 3)
    fates = stand.fates()
    (victim, at), own = fates["stop 1"]  # perhaps rolled meanwhile
    assert (victim, own) == ("cancelled", ("cancelled", cancel))
    assert at == before["stop 1"] or at > cancel
    assert fates["stop 2"] == [("fired", fire), ("not_pending", again)]
    assert [fate for fate, _ in fates["stop 3"]] == ["replaced"]
    assert fates["sour"] == [("expired", sour)]
    sources = [source(bench, offset) for offset in (before["stop 2"], fresh, replaced)]
    assert sorted(str(one.header("delay-source")) for one in seen) == sorted(sources)
