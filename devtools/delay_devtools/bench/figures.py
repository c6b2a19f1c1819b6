"""Figures of a bench; ``docs/internals/benchmarks.md`` explains each one."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from delay_devtools.bench.options import Options
from delayservice import __version__
from delayservice.config.settings import Settings
from delayservice.smoke.judge import Verdict, lateness

Figures: TypeAlias = dict[str, str | int | float | None]

US: Final = 1_000_000
_FAULTS: Final = ("lost", "duplicated", "early", "altered", "strangers")


def interpreter() -> str:
    """Return the version of Python, and whether it was built with profiles: a plain build takes a
    fifth more time. Debian's does not name its options.
    """
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_fast = "--enable-optimizations" in options or sys.base_prefix == "/usr"
    return f"{platform.python_version()}, {'optimised' if is_fast else 'plain'} build"


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a bench. ``verdicts`` are of the service's records, ``others`` of those that took
    another way.
    """

    figures: Figures
    verdicts: Sequence[Verdict] = ()
    others: Sequence[Verdict] = ()


def facts(options: Options) -> Figures:
    return {
        "bench": options.bench,
        "size": options.size,
        "cores": os.cpu_count(),
        "version": __version__,
        "python": interpreter(),
    }


def report(options: Options, settings: Settings, measured: Measured) -> Figures:
    every = (*measured.verdicts, *measured.others)
    late: Counter[int] = Counter()
    for verdict in measured.verdicts:
        late.update(verdict.lateness_ms)
    found = facts(options) | {
        "delivery": settings.delivery.mode,
        "store": settings.node.store,
        "partitions": options.partitions,
        "workers": settings.node.workers,
        **measured.figures,
        **lateness(late),
        **{name: sum(getattr(one, name) for one in every) for name in _FAULTS},
    }
    return {n: round(v, 3) if isinstance(v, float) else v for n, v in found.items()}


def is_good(found: Figures) -> bool:
    # At least once may double a record in a crash.
    doubled = found["duplicated"] if found["delivery"] == "exactly_once" else 0
    return not (doubled or any(found[name] for name in _FAULTS if name != "duplicated"))
