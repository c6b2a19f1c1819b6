"""What is kept of recent ids is bounded by worker, however many shards it has."""

from __future__ import annotations

from delayservice.contract.entry import SCHEDULE, Entry
from delayservice.engine.marking import NameShares, RecentNames

WORKERS_MAX = 2 * 100_000


def observe(names: RecentNames, count: int) -> None:
    """Ids that are each used once, a thousand at a time."""
    for start in range(0, count, 1_000):
        named: list[tuple[bytes, Entry]] = [
            (b"%d" % offset, (offset, SCHEDULE, 0, b"%d" % offset, None, offset))
            for offset in range(start, start + 1_000)
        ]
        names.observe(start, named, start + 1_000)


def test_the_shards_of_a_worker_share_what_is_kept() -> None:
    shares = NameShares()
    shards = [shares.make() for _ in range(10)]
    for names in shards:
        observe(names, 30_000)
        assert names.first(b"29999", 29_990, 30_000) == 29_999
        assert names.first(b"1", 0, 30_000) is None, "the log is searched for it"
    assert sum(len(names._order) for names in shards) <= WORKERS_MAX
    assert sum(len(names._offsets) for names in shards) <= WORKERS_MAX
    del shards, names
    alone = shares.make()
    observe(alone, 90_000)
    assert alone.first(b"1", 0, 90_000) == 1, "shards that are gone take nothing"
