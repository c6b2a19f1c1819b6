"""Runs schedules by their seeds."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import structlog

from tests.simulation.node import MakeStore
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.sim_digests import DigestBook
from tests.simulation.world import World

_SERVICE = ("connectors.kafka.", "delayservice.", "ha.")
SHORT: Mapping[str, float] = {
    "sink.FLUSH_STEP_S": 0.001,
    "sink.UNKNOWN_AFTER_MS": 15,
    "sink.LOOKED_UP_S": 0.005,
    "sink.UNACKNOWLEDGED_S": 0.03,
    "sink.COMMIT_TIMEOUT_S": 0.3,
    "delivery_reports.UNSUITED_S": 0.2,
    "take_over_client.PATIENCE_S": 0.01,
    "take_over_client.ANSWER_S": 0.2,
    "scan.SCAN_STALL_S": 0.03,
    "targets._RECHECK_S": 0.01,
    "targets._ANSWER_S": 0.05,
    "targets._GIVEN_UP_S": 0.02,
    "targets._GIVEN_UP_MAX_S": 0.6,
    "checkpoints._FIRST_LOOK": 4,
}
"""The times by which Kafka is waited for, a hundredth of what they are, for the records of a
schedule are due within a second or two; and a number of records.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a schedule ended. ``broken`` is the promise that was broken, or None."""

    seed: int
    broken: str | None
    commits: int
    outcomes: dict[str, int]


@contextmanager
def silenced() -> Iterator[None]:
    """Keep the service's log out of it: faults are the rule here."""
    quiet = structlog.wrap_logger(
        structlog.PrintLogger(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
    )
    modules = [one for name, one in sys.modules.items() if name.startswith(_SERVICE)]
    with (
        patch("delayservice.slices.shares._SHARE_MIN", 1),  # a few records are many here
        patch("delayservice.engine.to_home._AGAIN_MS", 30),
        ExitStack() as patches,
    ):
        for module in modules:
            if hasattr(module, "_log"):
                patches.enter_context(patch.object(module, "_log", quiet))
        for name, value in SHORT.items():
            patches.enter_context(patch(f"connectors.kafka.{name}", value))
        yield


def run_schedule(
    seed: int,
    *,
    plan: Plan | None = None,
    tell: Callable[[str], None] | None = None,
    make_store: MakeStore | None = None,
    book: DigestBook | None = None,
) -> Verdict:
    """Run one schedule. Whatever the service raises counts as a broken promise."""
    world = World(seed, plan or draw_plan(seed), tell, make_store, book)
    if tell is not None:
        tell(str(world.plan))
    broken = None
    try:
        world.run()
    except Exception as exc:  # noqa: BLE001  # an unforeseen error is a finding like any other
        broken = f"{type(exc).__name__}: {exc}"
        if tell is not None:
            tell(f"!! {broken}")
    return Verdict(seed, broken, world.oracle.commits, world.oracle.outcomes)


def replay_command(seed: int) -> str:
    """What to type to see it happen."""
    return f"python -m tests.simulation --seed {seed} --trace"
