"""Ids find home although the broker that leads their home is away, on three real brokers."""

from collections import Counter
from pathlib import Path

import pytest

from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract.partitioner import partition_for
from tests.integration.bench import Bench, Header, await_true, now_ms, outcomes_by_id

pytestmark = pytest.mark.night

PARTITIONS = 3
AWAY = PARTITIONS - 1
"""The partition on broker 3, which is stopped."""
YEAR_MS = 365 * 86_400_000
OPS: dict[str, Header] = {"cancelled": ("delay-op", b"cancel"), "fired": ("delay-op", b"fire")}


def ids_at(home: int, fate: str, count: int = 10) -> list[str]:
    names = (f"{fate} {number}" for number in range(1_000))
    return [name for name in names if partition_for(name.encode(), PARTITIONS) == home][:count]


def connections_refused() -> int:
    """On this machine since it was started."""
    names, counts = Path("/proc/net/snmp").read_text("ascii").splitlines()[6:8]
    return int(dict(zip(names.split(), counts.split(), strict=True))["AttemptFails"])


def test_records_for_a_home_without_leader_wait_in_order(tmp_path: Path) -> None:
    with (
        EmbeddedCluster(brokers=3, zookeepers=0) as cluster,
        Bench(cluster.bootstrap, tmp_path, partitions=PARTITIONS) as bench,
    ):
        # Each partition on a broker of its own, without replicas.
        bench.placed(bench.any, [[1], [2], [3]], message_timestamp_type="LogAppendTime")
        target = bench.placed(bench.target_name("orders"), [[1, 2, 3]])
        service = bench.serve()
        cluster.stop_broker(3, kill=True)
        before = connections_refused()
        ids = {name: fate for fate in OPS for name in ids_at(AWAY, fate)}
        soon = ids_at(AWAY, "delivered")
        for number, name in enumerate([*ids, *soon]):
            delay_ms = YEAR_MS if name in ids else 100
            headers = bench.to(target, delay_ms, ("delay-id", name))
            bench.send(headers, partition=number % AWAY)
        plain = [now_ms() + n for n in range(10)]
        for uid in plain:  # behind what waits
            bench.send(bench.to(target, 100), key=b"%d" % uid, partition=uid % AWAY)
        keys = {b"%d" % uid for uid in plain}
        bench.await_match(target, lambda one: one.key in keys, len(keys))
        for number, (name, fate) in enumerate(ids.items()):
            bench.send([("delay-id", name), OPS[fate]], partition=number % AWAY)
        assert outcomes_by_id(bench) == {}, "nothing is decided away from home"
        assert connections_refused() - before < 10_000, "clients pause before they connect again"
        cluster.start_broker(3)
        await_true(
            lambda: outcomes_by_id(bench).keys() >= ids.keys(),
            "all controls had their effect",
            90,
        )
        once = sorted([*ids_at(AWAY, "fired"), *soon])
        bench.await_match(target, lambda one: one.header("delay-id"), len(once))
        expected = {"cancelled": Counter(cancelled=2), "fired": Counter(fired=1)}
        assert outcomes_by_id(bench) == {name: expected[fate] for name, fate in ids.items()}
        seen = [one.header("delay-id") for one in bench.read_all(target)]
        assert sorted(name for name in seen if name) == once
        assert service.stop() == 0
