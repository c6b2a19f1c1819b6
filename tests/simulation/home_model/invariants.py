"""What has to hold in every state of the model, and at its ends. Knows the rules, no mistake."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.home_model.model import (
    CANCELLED,
    COPY,
    DELIVERED,
    EXPIRED,
    FATES,
    FINAL,
    FIRED,
    HOME,
    NOT_PENDING,
    OCCURRED,
    REPLACED,
    SCHEDULE,
    TOO_LARGE,
    USER,
    Outcome,
    Place,
    Record,
    Setup,
    State,
    canceller_of,
    home_of,
    is_foreign,
    key_of,
)
from tests.simulation.home_model.owner import Turn


class ViolationError(Exception):
    """A promise is broken."""


def check_step(setup: Setup, before: State, after: State) -> None:
    """Check what a step has changed.

    Raises:
        ViolationError: a promise is broken.
    """
    if after.open != before.open:
        _check_not_early(before, after)
    if after.logs != before.logs or after.outcomes != before.outcomes:
        _check_keys(setup, after)
        _check_rule_1(setup, after)
        _check_places(setup, after)
        final = final_outcomes(after)
        _check_conserved(after, final)
        _check_told(setup, after)
        _check_order(setup, after, final)
    if after.is_away:
        _check_not_blocked(setup, after)


def check_end(setup: Setup, state: State) -> None:
    """Check a state in which nothing more happens: all is settled but what is due later.

    Raises:
        ViolationError: a record is stuck.
    """
    for partition, offset, record, outcome in places(state):
        key = key_of(setup, partition, offset, record)
        if outcome is None and (key[0] <= state.now or offset >= state.cursors[partition].offset):
            raise ViolationError(f"{record} is stuck")


def places(state: State) -> Iterator[tuple[int, int, Record, Outcome | None]]:
    """``(partition, offset, record, outcome)`` of all records."""
    for partition, log in enumerate(state.logs):
        for offset, record in enumerate(log):
            yield partition, offset, record, state.outcomes[partition][offset]


def users_records(state: State) -> Iterator[tuple[int, Record]]:
    """``(partition, record)`` as users wrote them."""
    for partition, _, record, _ in places(state):
        if record.kind == USER:
            yield partition, record


def final_outcomes(state: State) -> dict[Place, Outcome]:
    """How each user's record ended.

    Raises:
        ViolationError: one ended twice.
    """
    found: dict[Place, Outcome] = {}
    for _, _, record, outcome in places(state):
        if outcome is not None and outcome.kind in FINAL:
            if record.source in found:
                raise ViolationError(f"{record.source}: {found[record.source]}, then {outcome}")
            found[record.source] = outcome
    return found


def _check_not_early(before: State, after: State) -> None:
    for partition in range(2):
        transaction, old = after.open[partition], before.open[partition]
        if transaction is None:
            continue
        known = dict(old.settled) if old else {}
        for offset, outcome in transaction.settled:
            record = before.logs[partition][offset]
            is_by_itself = outcome.kind == DELIVERED or outcome == Outcome(OCCURRED)
            if offset not in known and is_by_itself and before.now < record.due:
                raise ViolationError(f"{record} is early at {before.now}")
            if outcome.kind == EXPIRED and before.now <= record.expires:
                raise ViolationError(f"{record} is expired early at {before.now}")


def _check_keys(setup: Setup, state: State) -> None:
    """Rule 2: a replay finds the keys that were found when the records came."""
    for partition, offset, record, _ in places(state):
        now = Turn(setup, state, partition).key(offset)
        right = key_of(setup, partition, offset, record)
        if not state.keys[partition][offset] == now == right:
            was = state.keys[partition][offset]
            raise ViolationError(f"{record} has key {now}, had {was}, should have {right}")


def _check_rule_1(setup: Setup, state: State) -> None:
    for partition, offset, record, outcome in places(state):
        k, h = state.cursors[partition]
        x = canceller_of(state.logs[partition], offset)
        key = key_of(setup, partition, offset, record)
        is_settled = (offset < h and key <= k) or 0 <= x < h
        if is_settled != (outcome is not None):
            raise ViolationError(
                f"{partition}:{offset} {record}: {outcome} at K {k}, H {h}, x {x}, key {key}"
            )


def _check_places(setup: Setup, state: State) -> None:
    """Only what lies elsewhere by the contract of its place goes home, once, and is unchanged."""
    home: set[Place] = set()
    for partition, offset, record, _ in places(state):
        source = record.source
        user = state.logs[source.partition][source.offset]
        goes = is_foreign(setup, source.partition, source.offset, user)
        if record.kind == HOME:
            target = home_of(setup, source.partition, source.offset, record.name)
            if source in home or not goes or target != partition:
                raise ViolationError(f"{record} is at home in {partition}:{offset}")
            home.add(source)
        same = (user.op, user.written, user.name, user.expires)
        if same != (record.op, record.written, record.name, record.expires):
            raise ViolationError(f"{record} is not {user}")
        if record.kind == COPY and partition == source.partition and record.waits != goes:
            raise ViolationError(f"{record} is requeued where it does not belong")


def _check_conserved(state: State, final: dict[Place, Outcome]) -> None:
    """Each user's record is in one place, or has had its end."""
    living: dict[Place, int] = {}
    for _, _, record, outcome in places(state):
        if outcome is None:
            for one in (record, *record.carried):
                living[one.source] = living.get(one.source, 0) + 1
    for _, record in users_records(state):
        if living.get(record.source, 0) + (record.source in final) != 1:
            raise ViolationError(f"{record}: {living.get(record.source, 0)} are left of it")


def _check_told(setup: Setup, state: State) -> None:
    """What a cancel or fire says of itself is true, and only its home says ``not_pending``."""
    done = {
        (record.source, outcome.kind if outcome.kind != OCCURRED else FIRED, outcome.by)
        for _, _, record, outcome in places(state)
        if outcome is not None and outcome.by is not None and record.op == SCHEDULE
    }
    for partition, offset, record, outcome in places(state):
        if outcome is None or outcome.kind not in FINAL:
            continue
        if record.op == SCHEDULE:
            _check_schedule(setup, record, outcome)
            continue
        if outcome.kind == NOT_PENDING and is_foreign(setup, partition, offset, record):
            raise ViolationError(f"{record} says not_pending away from home")
        if outcome.kind == TOO_LARGE and _may_be_too_large(setup, record):
            continue
        if outcome.kind not in (NOT_PENDING, FATES[record.op]):
            raise ViolationError(f"{record} ends as {outcome}")
        told = outcome.kind == FATES[record.op]
        if told != any(by == record.source and kind == FATES[record.op] for _, kind, by in done):
            raise ViolationError(f"{record} says {outcome}, which is wrong: {done}")


def _check_schedule(setup: Setup, record: Record, outcome: Outcome) -> None:
    if outcome.kind == TOO_LARGE and not _may_be_too_large(setup, record):
        raise ViolationError(f"{record} is refused as too large")
    if outcome.kind not in (DELIVERED, EXPIRED, TOO_LARGE, REPLACED, CANCELLED, FIRED):
        raise ViolationError(f"{record} ends as {outcome}")


def _may_be_too_large(setup: Setup, record: Record) -> bool:
    is_large = record.is_large and record.op == SCHEDULE
    return is_large or setup.carried_max < len(setup.scripts[record.source.partition])


def _check_order(setup: Setup, state: State, final: dict[Place, Outcome]) -> None:
    """Records of one id and one user act in the order in which they were written: the next one
    settles a schedule if anything of that user does, and once it has taken its turn the schedule
    has ended. A fire of a recurring schedule ends nothing.
    """
    passing = {outcome.by for *_, outcome in places(state) if outcome and outcome.kind == OCCURRED}
    for partition in range(2):
        written = [record for at, record in users_records(state) if at == partition]
        for number, record in enumerate(written):
            if record.op != SCHEDULE:
                continue
            later = [next_ for next_ in written[number + 1 :] if next_.name == record.name]
            later = [next_ for next_ in later if next_.source not in passing]
            later = [next_ for next_ in later if not _is_refused(next_, final)]
            _check_next(setup, state, final, record, later)


def _check_next(
    setup: Setup,
    state: State,
    final: dict[Place, Outcome],
    record: Record,
    later: list[Record],
) -> None:
    if not later:
        return
    outcome = final.get(record.source)
    if outcome is None:
        turned = [next_ for next_ in later if _has_turned(setup, state, next_.source, final)]
        if turned:
            raise ViolationError(f"{record} is pending after {turned[0]} took its turn")
    elif outcome.by in {next_.source for next_ in later} and outcome.kind != FATES[later[0].op]:
        raise ViolationError(f"{record} is {outcome}, but {later[0]} came next")


def _is_refused(record: Record, final: dict[Place, Outcome]) -> bool:
    outcome = final.get(record.source)
    return outcome is not None and outcome.kind == TOO_LARGE


def _has_turned(setup: Setup, state: State, source: Place, final: dict[Place, Outcome]) -> bool:
    """Whether a user's record has acted on all of its id: H has passed it where it stays. What was
    settled on its way by another one of the same user has left that to the other.
    """
    outcome = final.get(source)
    if outcome is not None:
        by = outcome.by
        is_left = by is not None and by.partition == source.partition
        return not is_left or _has_turned(setup, state, by or source, final)
    for partition, offset, record, _ in places(state):
        if record.source != source or is_foreign(setup, partition, offset, record):
            continue
        if record.kind != COPY and offset < state.cursors[partition].offset:
            return True
    return False


def _check_not_blocked(setup: Setup, state: State) -> None:
    """A home that can't be written to holds H up nowhere."""
    for partition in range(state.partitions):
        h = state.cursors[partition].offset
        if state.open[partition] is not None or h == len(state.logs[partition]):
            continue
        if not Turn(setup, state, partition).walk_offset():
            raise ViolationError(f"H of {partition} waits at {h}")
