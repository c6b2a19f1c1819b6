"""What can happen in the model: users, owners, trouble."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.home_model.model import HOME, USER, Place, Record, Setup, State, put
from tests.simulation.home_model.owner import Turn


def steps(setup: Setup, state: State) -> Iterator[tuple[str, State]]:
    """All that can happen next, each with its name."""
    yield from _user_steps(setup, state)
    yield from _trouble(setup, state)
    for partition in range(state.partitions):
        yield from _owner_steps(setup, state, partition)


def _user_steps(setup: Setup, state: State) -> Iterator[tuple[str, State]]:
    for partition in range(state.partitions):
        number = state.wishes[partition]
        script = setup.scripts[partition]
        if number < len(script):
            wish = script[number]
            source = Place(partition, len(state.logs[partition]))
            record = Record(USER, wish.op, source, state.now, *wish[1:])
            after = appended(setup, state, partition, record)
            wishes = put(state.wishes, partition, number + 1)
            yield f"user writes {wish} to {source}", after._replace(wishes=wishes)


def _trouble(setup: Setup, state: State) -> Iterator[tuple[str, State]]:
    left = state.left
    if state.now < setup.clock_max:
        is_away = state.is_away and state.now + 1 < setup.clock_max
        yield f"clock {state.now + 1}", state._replace(now=state.now + 1, is_away=is_away)
    if state.is_away:
        yield "home can be written to", state._replace(is_away=False)
    elif left.outages and state.now < setup.clock_max:
        outages = left._replace(outages=left.outages - 1)
        yield "home can't be written to", state._replace(is_away=True, left=outages)
    if state.partitions == 1:
        yield "a partition is added", state._replace(partitions=2)
    if left.replays:
        replays = left._replace(replays=left.replays - 1)
        for partition, log in enumerate(state.logs):
            for record in {record for record in log if record.kind == HOME}:
                after = appended(setup, state, partition, record)
                yield f"{record} is written again", after._replace(left=replays)


def _owner_steps(setup: Setup, state: State, partition: int) -> Iterator[tuple[str, State]]:
    transaction = state.open[partition]
    if transaction is not None:
        yield f"owner of {partition} commits {transaction}", committed(setup, state, partition)
        if state.left.drops:
            left = state.left._replace(drops=state.left.drops - 1)
            gone = put(state.open, partition, None)
            yield f"owner of {partition} drops", state._replace(open=gone, left=left)
        if transaction.steps >= setup.steps_max:
            return
    yield from _walks(setup, state, partition)


def _walks(setup: Setup, state: State, partition: int) -> Iterator[tuple[str, State]]:
    for parks in (False, True) if state.left.parks else (False,):
        for name in ("H", "K"):
            turn = Turn(setup, state, partition, parks=parks)
            if name == "H":
                if turn.cursor.offset >= len(state.logs[partition]) or not turn.walk_offset():
                    continue
            elif not turn.walk_key():
                continue
            if parks and not turn.has_parked:
                continue
            after = turn.staged()
            if "forward_outside_transaction" in setup.mutations:
                after = _forwarded_at_once(setup, after, partition)
            if parks:
                after = after._replace(left=state.left._replace(parks=state.left.parks - 1))
            yield f"owner of {partition} walks {name}{' and parks' if parks else ''}", after


def _forwarded_at_once(setup: Setup, state: State, partition: int) -> State:
    transaction = state.open[partition]
    assert transaction is not None
    for home, record in transaction.forwards:
        state = appended(setup, state, home, record)
    kept = transaction._replace(forwards=())
    return state._replace(open=put(state.open, partition, kept))


def committed(setup: Setup, state: State, partition: int) -> State:
    """The open transaction becomes visible as a whole."""
    transaction = state.open[partition]
    assert transaction is not None
    outcomes = list(state.outcomes[partition])
    for offset, outcome in transaction.settled:
        outcomes[offset] = outcome
    state = state._replace(
        outcomes=put(state.outcomes, partition, tuple(outcomes)),
        cursors=put(state.cursors, partition, transaction.cursor),
        open=put(state.open, partition, None),
    )
    for record in transaction.copies:
        state = appended(setup, state, partition, record)
    for home, record in transaction.forwards:
        state = appended(setup, state, home, record)
    return state


def appended(setup: Setup, state: State, partition: int, record: Record) -> State:
    """The state with a record at the end of a log."""
    logs = put(state.logs, partition, (*state.logs[partition], record))
    outcomes = put(state.outcomes, partition, (*state.outcomes[partition], None))
    state = state._replace(logs=logs, outcomes=outcomes)
    key = Turn(setup, state, partition).key(len(logs[partition]) - 1)
    return state._replace(keys=put(state.keys, partition, (*state.keys[partition], key)))
