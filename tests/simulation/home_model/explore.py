"""Explores the model: every interleaving of a setup, or one of many at random."""

from __future__ import annotations

from collections import deque
from random import Random

from tests.simulation.home_model.invariants import ViolationError, check_end, check_step
from tests.simulation.home_model.model import Setup, State
from tests.simulation.home_model.world import steps


class FoundError(Exception):
    """A violation with the steps that lead to it."""

    def __init__(self, setup: Setup, trace: list[str], broken: ViolationError) -> None:
        lines = "\n  ".join(trace)
        super().__init__(f"{broken}\n  {setup}\n  {lines}")


def explore(setup: Setup, states_max: int) -> int:
    """Take every step from every state.

    Returns:
        The number of states.

    Raises:
        FoundError: a promise is broken; the trace is a shortest one.
        ValueError: there are more than ``states_max`` states.
    """
    start = setup.start()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        is_end = True
        for name, after in steps(setup, state):
            is_end = False
            if after in came_from:
                continue
            came_from[after] = (state, name)
            try:
                check_step(setup, state, after)
            except ViolationError as exc:
                raise FoundError(setup, _trace(came_from, after), exc) from exc
            queue.append(after)
        if is_end:
            try:
                check_end(setup, state)
            except ViolationError as exc:
                raise FoundError(setup, _trace(came_from, state), exc) from exc
        if len(came_from) > states_max:
            raise ValueError(f"more than {states_max} states")
    return len(came_from)


def walk(setup: Setup, rng: Random) -> int:
    """Take steps at random until none is left.

    Returns:
        The number of steps.

    Raises:
        FoundError: a promise is broken.
    """
    state = setup.start()
    trace: list[str] = []
    while True:
        options = list(steps(setup, state))
        try:
            if not options:
                check_end(setup, state)
                return len(trace)
            name, after = rng.choice(options)
            trace.append(name)
            check_step(setup, state, after)
        except ViolationError as exc:
            raise FoundError(setup, trace, exc) from exc
        state = after


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names: list[str] = []
    step = came_from[state]
    while step is not None:
        names.append(step[1])
        step = came_from[step[0]]
    return names[::-1]
