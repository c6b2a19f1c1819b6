from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from delay_devtools.bench.tally import SIZE_MIN
from delayservice.base.errors import SettingsError
from delayservice.config.settings import Settings, load

Bench: TypeAlias = Literal[
    "passthrough",
    "whole",
    "burst",
    "level",
    "steady",
    "pending",
    "restart",
    "idle",
    "soak",
    "failover",
    "peers",
]
Store: TypeAlias = Literal["wheel", "rocksdb", "memory"]
DeliveryMode: TypeAlias = Literal["exactly_once", "at_least_once"]

SECRET: Final = "only-for-benches-0123456789"  # noqa: S105 (nothing else is signed with it)
DELAY_MS: Final = (5_000, 15_000)
SPREAD_S_MAX: Final = 14 * 86_400
IDLE_SHARDS: Final = 64
IDLE_SHARDS_OF_SEVERAL: Final = 256
_SLICES_OF_SEVERAL: Final = 64
_TAKES_NODES: Final = frozenset({"idle", "failover"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Default options of a bench; 0: the bench has no use for the option."""

    n: int = 0
    rate_per_s: int = 0
    seconds: float = 0
    delay_ms: tuple[int, int] = DELAY_MS
    rounds: int = 1
    trials: int = 0
    nodes: int = 1
    partitions: int = 4


_USUAL: Final[Mapping[Bench, Usual]] = {
    "passthrough": Usual(n=400_000, rounds=3),
    "whole": Usual(n=400_000, rounds=3),
    "burst": Usual(n=200_000),
    "level": Usual(n=400_000, rounds=3),
    "steady": Usual(rate_per_s=2_000, seconds=30),
    "pending": Usual(n=10_000_000, rate_per_s=2_000, seconds=30),
    "restart": Usual(n=1_000_000),
    "idle": Usual(seconds=30),
    "soak": Usual(rate_per_s=5_000, seconds=600),
    "failover": Usual(rate_per_s=2_000, delay_ms=(0, 2_000), trials=50, nodes=3),
    "peers": Usual(n=2_000, rate_per_s=200, delay_ms=(1_000, 10_000)),
}


_FULL: Final = (
    "rates.per_s.*=10000000",
    "delivery.slot_records_max=1000000",
    "delivery.slot_policy=spread",
    "levels.preset=default",
    "levels.prefix=bench_level_",
)


def usual(bench: Bench, nodes: int | None) -> Usual:
    found = _USUAL[bench]
    if bench == "idle" and (nodes or 1) > 1:
        return replace(found, partitions=_SLICES_OF_SEVERAL)
    return found


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one bench.

    Attributes:
        n: number of records of a round.
        size: bytes of a record's value.
        nodes: number of nodes, each beside a broker; several need a ZooKeeper.
        workers: number of worker processes of a node.
        seconds: duration of sending; of ``idle``, of measuring.
        delay_ms: shortest and longest delay.
        spread_s: window over which pending records are due; 0: the roll window of the service,
            ``SPREAD_S_MAX`` at most.
        trials: number of kills of a node.
        transaction_records: records in a transaction of the bench ``passthrough``.
        judge_beside: whether the judge process reads while passthrough copies; else afterwards.
        warm_up: whether an unmeasured run comes first.
        full: whether unneeded features are on: ids and expiries, limits that are never reached,
            level topics.
        sets: settings of the service, ``section.key=value``; they override all others.
        bootstrap: brokers of a running cluster; empty for an embedded one.
    """

    bench: Bench
    store: Store
    delivery: DeliveryMode
    n: int
    size: int
    partitions: int
    nodes: int
    workers: int
    rate_per_s: int
    seconds: float
    delay_ms: tuple[int, int]
    spread_s: int
    rounds: int
    trials: int
    transaction_records: int
    judge_beside: bool
    warm_up: bool
    full: bool
    seed: int
    sets: tuple[str, ...]
    bootstrap: str

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == "exactly_once"

    @property
    def has_several(self) -> bool:
        return self.nodes > 1

    @property
    def idle_shards(self) -> int:
        # At least one for each partition.
        usual = IDLE_SHARDS_OF_SEVERAL if self.has_several else IDLE_SHARDS
        return max(usual, self.partitions)

    def settings(self, bootstrap: str, sets: Sequence[str] = ()) -> Settings:
        config = os.environ.get("DELAYSERVICE_CONFIG")
        asked = self.sets_of(bootstrap, sets)
        return load(Path(config) if config else None, asked, os.environ)

    def sets_of(self, bootstrap: str, sets: Sequence[str] = ()) -> list[str]:
        return [
            f"kafka.bootstrap={bootstrap}",
            f"node.store={self.store}",
            f"node.workers={self.workers}",
            f"delivery.mode={self.delivery}",
            f"node.cluster_secret={SECRET}",
            *(_FULL if self.full else ()),
            *sets,
            *self.sets,
        ]


def check(options: Options) -> None:
    shortest, longest = options.delay_ms
    if options.size < SIZE_MIN:
        raise SettingsError(
            f"--size is {options.size}, but number, due time and tag of a record take {SIZE_MIN} "
            f"bytes: give {SIZE_MIN} or more"
        )
    if not 0 <= shortest <= longest:
        raise SettingsError(
            f"--delay-ms is {shortest} {longest}: give the shortest delay first, 0 or more"
        )
    if options.bench == "idle" and options.idle_shards % options.partitions:
        raise SettingsError(
            f"--partitions is {options.partitions}: {options.idle_shards} idle shards need a "
            f"divisor of {options.idle_shards}"
        )
    # A wrong --set ends here, not after a cluster has started.
    _check_nodes(options, options.settings("127.0.0.1:1"))


def _check_nodes(options: Options, settings: Settings) -> None:
    if options.has_several and options.bench not in _TAKES_NODES:
        raise SettingsError(
            f"--nodes is {options.nodes}, but {options.bench} measures one node: idle and failover "
            "take several"
        )
    if options.bench == "failover" and not options.has_several:
        raise SettingsError("--nodes is 1: for a failover give 2 or more")
    if options.bench == "peers" and options.bootstrap:
        raise SettingsError("--bootstrap: peers starts and kills its own broker; leave it out")
    if options.has_several and options.bootstrap and not settings.zookeeper.hosts:
        raise SettingsError(
            "several nodes on a cluster of yours need its ZooKeeper: name it with "
            "--set zookeeper.hosts=HOST:PORT"
        )
