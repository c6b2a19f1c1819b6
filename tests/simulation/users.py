"""Users: they schedule, once or often, replace, cancel, fire and get it wrong, alone or in
transactions of their own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from delayservice.engine.ports import Place
from tests.simulation.calendar import BAD, NEVER
from tests.simulation.history import (
    ABSENT,
    CANCEL,
    DENIED,
    FICKLE,
    FIRE,
    INVALID,
    SCHEDULE,
    Wish,
)
from tests.simulation.plan import LEVELS_MS
from tests.simulation.sim_log import OPEN, Transaction, Written

if TYPE_CHECKING:
    from tests.simulation.world import World

TARGETS = ("orders", FICKLE)
SLOW = "slow"
"""The target of one slice, of which nobody says for long whether it can be written to."""
TARGET_PARTITIONS = 2
BATCH_BYTES_MAX = 1_500
TOO_LARGE = b"too large " * 200
LARGE = b"large " * 150
"""One of them fits into a batch, two do not."""
MAX_DELAY_MS = 20_000
EVERY_MS = (1_000, 1_000, 1_700)
CRONS = ("*/20", "*/50", "*/50", "*/130", "*/300", NEVER, BAD)
DELAYS_MS = (-2_000, -30, 0, 1, 3, 3, 10, 25, 60, 100, 150, 200, 500, 1_200)


class Users:
    """All users of the delay topics."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._left = world.plan.records
        self._last_due_ms = world.now_ms
        self._transaction: Transaction | None = None
        self._unsure: list[tuple[Written, Wish]] = []
        self._endless: set[tuple[Place, bytes]] = set()
        """Shards and ids of schedules that only a cancel ends."""

    def write_one(self) -> None:
        """Write one record, perhaps in an open transaction."""
        if self._left == 0:
            return
        self._left -= 1
        place = self._rng.choice(self._world.open_places)
        level_ms = LEVELS_MS.get(place[0], 0)
        wish = self._on_level(level_ms) if level_ms else self._wish()
        if self._world.plan.homes and not level_ms:
            wish = self._with_homes(place, wish)
        if wish.target and self._world.plan.stuck == "asked" and place[1] == self._world.late:
            wish = replace(wish, target=SLOW)
        self._write(place, wish, self._maybe_transaction())

    def _write(self, place: Place, wish: Wish, transaction: Transaction | None) -> None:
        world = self._world
        headers = wish.headers() if wish.op != INVALID else list(wish.own)
        if wish.recurs and wish.times is None and wish.record_id is not None:
            self._endless.add((place, wish.record_id))
        record = (wish.key, wish.value, headers)
        written = world.log.append(place, world.now_ms, record, transaction)
        world.trace(
            f"user writes {place} {written.offset}: {wish.op} {wish.record_id!r} due {wish.due_ms}"
            + (f" recurs {wish.recurrence(wish.times)}" if wish.recurs else "")
            + (" in a transaction" if transaction else "")
        )
        if transaction is None:
            world.oracle.user_wrote(written, wish)
        else:
            self._unsure.append((written, wish))

    def _wish(self) -> Wish:
        rng = self._rng
        number = self._left
        kind = rng.random()
        if kind < 0.06:
            return self._invalid(number)
        record_id = None
        if rng.random() < 0.75:
            record_id = b"id-%d" % rng.randrange(self._world.plan.ids)
        if record_id is not None and kind < 0.36:
            op = CANCEL if kind < 0.24 else FIRE
            return Wish(op, record_id, key=b"k%d" % number, value=rng.choice((None, b"bye")))
        wish = self._once(number, record_id)
        if rng.random() < self._world.plan.recurring:
            wish = self._again(wish)
        if record_id is not None and self._world.flip(self._world.plan.absent):
            wish = replace(wish, op=ABSENT)
        return wish

    def _with_homes(self, place: Place, wish: Wish) -> Wish:
        """What else users do where ids find home: they name a delay, write records that hardly fit,
        and what looks as if it came from the service.
        """
        rng, plan = self._rng, self._world.plan
        if plan.forges and rng.random() < 0.08:
            return self._forged(place)
        if wish.op == INVALID and rng.random() < 0.5:
            return replace(wish, own=(*wish.own, ("delay-id", b"id-%d" % rng.randrange(plan.ids))))
        if wish.op != SCHEDULE or wish.recurs:
            return wish
        now_ms = self._world.now_ms
        if plan.homes_late and not self._world.homes_are_on and rng.random() < 0.5:
            due_ms = max(wish.due_ms, now_ms) + 2_000  # pending when they find home
            wish = replace(wish, due_ms=due_ms, expires_ms=None)
        if wish.due_ms > now_ms and rng.random() < 0.3:
            wish = replace(wish, after_ms=wish.due_ms - now_ms)
        if plan.away and rng.random() < 0.2:
            wish = replace(wish, expires_ms=now_ms + rng.choice((0, 40, 100)))
        if plan.large and rng.random() < 0.7:
            room = BATCH_BYTES_MAX - _bytes_of(wish) - rng.choice((10, 100, 200, 300, 400, 600))
            value = (wish.value or b"") + b"." * max(room, 0)
            wish = replace(wish, value=value, is_large=True)
        return wish

    def _forged(self, place: Place) -> Wish:
        """What the service wrote elsewhere, or what it wrote here with another value."""
        found = [
            written
            for other in self._world.precise
            for written in self._world.log.partition(other).written
            if written.is_committed and written.transaction and written.transaction.writer
        ]
        made_up = {"v": 1, "op": "cancel", "source": "", "written": 0}
        own = (("delay-home", json.dumps(made_up).encode()), ("delay-home-mac", b"00"))
        if not found or self._rng.random() < 0.2:
            return Wish(INVALID, value=b"forged", own=own, code="copy-forged")
        written = self._rng.choice(found)
        value = written.value
        if written.place == place:
            value = b"another value" if value is None else value[:-1]
        said = tuple(written.headers)
        return Wish(INVALID, key=written.key, value=value, own=said, code="copy-forged")

    def _once(self, number: int, record_id: bytes | None) -> Wish:
        rng, due_ms = self._rng, self._due_ms()
        value = b"v%d \x00\xff" % number
        if self._world.plan.targets_fail:
            value = rng.choices((TOO_LARGE, LARGE, b""), (15, 45, 40))[0] + value
        return Wish(
            SCHEDULE,
            record_id,
            due_ms,
            expires_ms=due_ms + rng.choice((0, 40)) if rng.random() < 0.1 else None,
            target=DENIED if self._world.flip(self._world.plan.denied) else rng.choice(TARGETS),
            key=rng.choice((None, b"", b"\xfe%d" % number)),
            value=value,
            own=(("trace", b"%d" % number), ("trace", None)) if rng.random() < 0.5 else (),
        )

    def _on_level(self, level_ms: int) -> Wish:
        """A record of a level topic: the topic says when it is due."""
        rng, number = self._rng, self._left
        if rng.random() < 0.1:
            target = (("delay-target-topic", b"__secrets"),)
            code, own = rng.choice((("target-missing", ()), ("target-denied", target)))
            return Wish(INVALID, value=b"bad %d" % number, own=own, code=code)
        due_ms = self._world.now_ms + level_ms
        return replace(self._once(number, None), due_ms=due_ms, expires_ms=None, level_ms=level_ms)

    def _again(self, wish: Wish) -> Wish:
        """The same as a schedule that recurs, with a beginning and an end or without."""
        rng, now_ms = self._rng, self._world.now_ms
        by_period = rng.random() < self._world.plan.periods
        ends = (1, 2, 3, 4) if wish.record_id is None else (1, 2, 3, 4, None, None)
        return replace(
            wish,
            due_ms=wish.due_ms if rng.random() < 0.4 else 0,
            every_ms=rng.choice(EVERY_MS) if by_period else 0,
            cron="" if by_period else rng.choice(CRONS),
            times=rng.choice(ends),
            expires_ms=now_ms + rng.choice((50, 400, 2_500)) if rng.random() < 0.2 else None,
        )

    def _due_ms(self) -> int:
        rng, plan, now_ms = self._rng, self._world.plan, self._world.now_ms
        if rng.random() < plan.again:
            return self._last_due_ms + rng.choice((0, 0, -1, 1))
        due_ms = now_ms + rng.choice(DELAYS_MS)
        if rng.random() < plan.far:
            due_ms = now_ms + plan.roll_window_ms + rng.choice((1, 30, 100, 200))
        elif rng.random() < plan.near:
            due_ms = now_ms + rng.randrange(-40, 150)
        self._last_due_ms = due_ms
        return due_ms

    def _invalid(self, number: int) -> Wish:
        soon = b"%d" % (self._world.now_ms + 10)
        far = b"%d" % (self._world.now_ms + 2 * MAX_DELAY_MS)
        target = ("delay-target-topic", b"orders")
        code, own = self._rng.choice(
            (
                ("time-missing", (target,)),
                ("time-invalid", (("delay-at", b"soon"), target)),
                ("target-missing", (("delay-at", soon),)),
                ("target-denied", (("delay-at", soon), ("delay-target-topic", b"__secrets"))),
                ("op-invalid", (("delay-op", b"undo"), ("delay-at", soon), target)),
                ("delay-too-long", (("delay-at", far), target)),
                ("cron-invalid", (("delay-every", b"999"), target)),
                ("copy-forged", (("delay-copy", b'{"v":1}'), ("delay-copy-mac", b"00"))),
            )
        )
        return Wish(INVALID, value=b"bad %d" % number, own=own, code=code)

    def load(self) -> None:
        """Write one more record that is due in a moment, although all were written."""
        place = self._rng.choice(self._world.open_places)
        wait_ms = 0 if place[0] in LEVELS_MS else self._rng.randrange(60)
        self._left -= 1
        wish = self._soon(place, wait_ms, self._rng.choice(TARGETS), b"load %d" % -self._left)
        self._write(place, wish, None)
        if self._world.plan.homes and place[0] not in LEVELS_MS and self._rng.random() < 0.5:
            record_id = b"id-%d" % self._rng.randrange(self._world.plan.ids)
            self._write(place, replace(wish, record_id=record_id), None)

    def write_to(self, slice_no: int) -> None:
        """Write a record that is due now, which the owner of the slice has to settle."""
        place = next(place for place in self._world.open_places if place[1] == slice_no)
        self._write(place, self._soon(place, 0, TARGETS[0], b"now"), None)

    def _soon(self, place: Place, wait_ms: int, target: str, value: bytes) -> Wish:
        level_ms = LEVELS_MS.get(place[0], 0)
        due_ms = self._world.now_ms + level_ms + wait_ms
        return Wish(SCHEDULE, due_ms=due_ms, target=target, value=value, level_ms=level_ms)

    # --- transactions --------------------------------------------------------------------------

    def _maybe_transaction(self) -> Transaction | None:
        if not self._world.plan.foreign:
            return None
        if self._transaction is None and self._rng.random() < 0.3:
            self._transaction = self._world.log.begin()
        return self._transaction if self._rng.random() < 0.6 else None

    def end_transaction(self) -> None:
        """Commit or abort the open one."""
        transaction, self._transaction = self._transaction, None
        if transaction is None or transaction.state != OPEN:
            return
        commit = self._rng.random() < 0.6
        self._world.trace(f"user {'commits' if commit else 'aborts'}")
        if commit:
            for written, wish in self._unsure:
                self._world.oracle.user_wrote(written, wish)
        self._unsure.clear()
        self._world.log.decide(
            transaction, commit=commit, lazy_markers=self._world.plan.lazy_markers
        )

    def write_all(self) -> None:
        """Write what is left, and cancel what would never end."""
        while self._left:
            self.write_one()
        self.end_transaction()
        for place, record_id in sorted(self._endless):
            self._write(place, Wish(CANCEL, record_id), None)

    def cancel_doubled(self) -> None:
        """Cancel again what would never end: of two pending records of an id, a cancel may settle
        one.
        """
        for place, record_id in sorted(self._endless):
            if record_id in self._world.oracle.shards[place].doubled_ids:
                self._write(place, Wish(CANCEL, record_id), None)


def _bytes_of(wish: Wish) -> int:
    """What a record takes of a batch."""
    headers = sum(len(name) + len(text or b"") + 2 for name, text in wish.headers())
    return len(wish.key or b"") + len(wish.value or b"") + headers
