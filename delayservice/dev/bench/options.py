"""What one run of a bench is asked to do: every choice, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from delayservice.dev.bench.records import SIZE_MIN
from delayservice.errors import SettingsError
from delayservice.settings import Settings, load

Bench: TypeAlias = Literal[
    "passthrough", "whole", "burst", "steady", "pending", "restart", "idle", "soak"
]
Store: TypeAlias = Literal["wheel", "rocksdb", "memory"]
Delivery: TypeAlias = Literal["exactly_once", "at_least_once"]

RECORDS: Final[Mapping[str, int]] = {
    "passthrough": 400_000,
    "whole": 400_000,
    "burst": 200_000,
    "pending": 10_000_000,
    "restart": 1_000_000,
}
"""Records of the benches that send a number of them; the others send a rate for a time."""
RATE_PER_S: Final[Mapping[str, int]] = {"steady": 2_000, "pending": 2_000, "soak": 5_000}
SECONDS: Final[Mapping[str, int]] = {"steady": 30, "pending": 30, "idle": 30, "soak": 600}
ROUNDS: Final[Mapping[str, int]] = {"passthrough": 3, "whole": 3}
DELAY_MS: Final = (5_000, 15_000)
SPREAD_S_MAX: Final = 14 * 86_400
IDLE_SHARDS: Final = 64


@dataclass(frozen=True, slots=True)
class Options:
    """One run.

    Attributes:
        bench: which.
        store: ``node.store`` of the service.
        delivery: ``delivery.mode`` of the service.
        n: records of a round.
        size: bytes of a value.
        partitions: of the delay topic and of the target.
        workers: ``node.workers`` of the service.
        rate_per_s: records a second where a rate is kept.
        seconds: how long it is kept.
        delay_ms: shortest and longest delay then, milliseconds.
        spread_s: window over which pending records are due; 0: what the service can hold without
            rolling, ``SPREAD_S_MAX`` at most.
        rounds: repetitions; the median counts.
        transaction_records: of passthrough where no service tells its own.
        judge_beside: read and judge while passthrough runs, not afterwards.
        warm_up: do everything once, unmeasured, before.
        seed: of due times and filler.
        sets: settings of the service, ``section.key=value``; they win over everything here.
        bootstrap: a cluster that is there; empty for an embedded one.
    """

    bench: Bench
    store: Store
    delivery: Delivery
    n: int
    size: int
    partitions: int
    workers: int
    rate_per_s: int
    seconds: float
    delay_ms: tuple[int, int]
    spread_s: int
    rounds: int
    transaction_records: int
    judge_beside: bool
    warm_up: bool
    seed: int
    sets: tuple[str, ...]
    bootstrap: str

    @property
    def is_exactly_once(self) -> bool:
        """Whether a doubled record is an error."""
        return self.delivery == "exactly_once"

    def settings(self, bootstrap: str, sets: Sequence[str] = ()) -> Settings:
        """The settings that the service will see: environment, file, and ``--set``.

        Raises:
            SettingsError: one is wrong.
        """
        config = os.environ.get("DELAYSERVICE_CONFIG")
        asked = self.sets_of(bootstrap, sets)
        return load(Path(config) if config else None, asked, os.environ)

    def sets_of(self, bootstrap: str, sets: Sequence[str] = ()) -> list[str]:
        """``--set`` arguments of the service: these options, then ``sets``, then the user's."""
        return [
            f"kafka.bootstrap={bootstrap}",
            f"node.store={self.store}",
            f"node.workers={self.workers}",
            f"delivery.mode={self.delivery}",
            *sets,
            *self.sets,
        ]


def check(options: Options) -> Options:
    """Refuse what can't be measured.

    Raises:
        SettingsError: says which option, and what to give instead.
    """
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
    if options.bench == "idle" and IDLE_SHARDS % options.partitions:
        raise SettingsError(
            f"--partitions is {options.partitions}: {IDLE_SHARDS} idle shards need a divisor of "
            f"{IDLE_SHARDS}"
        )
    options.settings("127.0.0.1:1")  # a wrong --set ends here, not after a cluster has started
    return options
