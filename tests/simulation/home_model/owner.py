"""The owner of one partition: what it settles, and how (rules 8 to 14)."""

from __future__ import annotations

from tests.simulation.home_model.model import (
    CARRIED,
    COPY,
    DELIVERED,
    EXPIRED,
    FATES,
    FIRE,
    FORWARDED,
    HASHES,
    HOME,
    NOT_PENDING,
    OCCURRED,
    REPLACED,
    REQUEUED,
    SCHEDULE,
    TOO_LARGE,
    UNREADABLE,
    Cursor,
    Key,
    Outcome,
    Record,
    Setup,
    State,
    Transaction,
    canceller_of,
    first_named,
    home_of,
    put,
)


class Turn:
    """One settlement of an owner, added to its open transaction.

    ``parks`` says that targets fail; ``has_parked`` that this made a difference.
    """

    def __init__(self, setup: Setup, state: State, partition: int, *, parks: bool = False) -> None:
        self._setup = setup
        self._wrong = setup.mutations
        self._state = state
        self._partition = partition
        self._log = state.logs[partition]
        self._parks = parks
        self.has_parked = False
        opened = state.open[partition] or Transaction(state.cursors[partition])
        self._staged = opened
        self.cursor = opened.cursor
        self._settled = dict(opened.settled)
        self._copies = list(opened.copies)
        self._forwards = list(opened.forwards)

    # What is known here, from the log.

    def _home(self, offset: int, name: str) -> int:
        if "home_by_current_count" in self._wrong:
            return HASHES[name] % self._state.partitions
        return home_of(self._setup, self._partition, offset, name)

    def _is_foreign(self, offset: int) -> bool:
        record = self._log[offset]
        if record.kind == COPY and "forward_requeued" not in self._wrong:
            return False
        if record.kind == HOME and "forward_again_at_home" not in self._wrong:
            return False
        return self._home(offset, record.name) != self._partition

    def key(self, offset: int) -> Key:
        """The key as this owner has it."""
        record = self._log[offset]
        if record.kind == COPY:
            return record.at, offset
        if record.op != SCHEDULE:
            return 0, offset
        if self._is_foreign(offset) and "key_by_due_time" not in self._wrong:
            return 0, offset
        return record.due, offset

    def _canceller(self, offset: int) -> int:
        record = self._log[offset]
        if record.kind == HOME and "home_keeps_first_base" in self._wrong:
            return first_named(self._log, record.name, record.source.offset + 1, offset)
        if record.waits and "waiting_is_not_found" in self._wrong:
            return -1
        return canceller_of(self._log, offset)

    def _is_pending(self, offset: int) -> bool:
        return offset not in self._settled and not self._state.outcomes[self._partition][offset]

    def _awaits_copy(self, name: str, offset: int) -> bool:
        """Rule 14: an own copy that this record settles has no offset yet."""
        return any(copy.name == name and copy.base <= offset for copy in self._copies)

    # The two walks.

    def walk_offset(self) -> bool:
        """Advance H by one record (rules 8 and 9); False: it has to wait."""
        offset = self.cursor.offset
        record = self._log[offset]
        if self._is_pending(offset):
            if record.kind != COPY and not self._read_user_record(offset, record):
                return False
            is_late = self.key(offset) <= self.cursor.key
            if "home_counts_as_late" in self._wrong:
                is_late |= record.kind == HOME
            if is_late and self._is_pending(offset) and not self._settle_due(offset, offset + 1):
                return False
        self.cursor = Cursor(self.cursor.key, offset + 1)
        return True

    def walk_key(self) -> bool:
        """Advance K by one pending record (rule 10); False: none is due."""
        now, h = self._state.now, self.cursor.offset
        keys = [self.key(offset) for offset in range(h) if self._is_pending(offset)]
        due = [key for key in keys if key > self.cursor.key and key[0] <= now]
        if not due or not self._settle_due(min(due)[1], h):
            return False
        self.cursor = Cursor(min(due), h)
        return True

    # Rule 8, and what goes home.

    def _read_user_record(self, offset: int, record: Record) -> bool:
        if self._awaits_copy(record.name, offset):
            return False
        victims = [
            at
            for at in range(len(self._log))
            if at != offset and self._is_pending(at) and self._canceller(at) == offset
        ]
        is_off = record.kind == HOME and not self._setup.count_at(self._partition, offset)
        if is_off and "home_read_by_its_contract" in self._wrong:
            return self._end(offset, Outcome(UNREADABLE))
        if not self._is_foreign(offset):
            return self._act_at_home(offset, record, victims)
        if "forward_before_acting" in self._wrong:
            return self._send(offset, record, offset + 1)
        return self._act_away(offset, record, victims)

    def _act_at_home(self, offset: int, record: Record, victims: list[int]) -> bool:
        """Settle what is pending, then a cancel or fire itself."""
        for victim in victims:
            self._settle_victim(victim, record.op, offset)
        if record.op == SCHEDULE:
            return True
        return self._end(offset, Outcome(FATES[record.op] if victims else NOT_PENDING))

    def _act_away(self, offset: int, record: Record, victims: list[int]) -> bool:
        """Settle what is pending where a record lies, then send it home with what waited for that,
        unless it is a cancel or fire and has done its work.
        """
        waiting = [at for at in victims if self._log[at].waits]
        if "waiting_is_settled" in self._wrong:  # the design's text, taken literally
            waiting = []
        if self._is_too_large(record, waiting):
            return self._refuse(offset, record, victims, waiting)
        here = [at for at in victims if at not in waiting]
        for victim in here:
            self._settle_victim(victim, record.op, offset)
        is_done = bool(here) and record.op != SCHEDULE
        if is_done and "control_goes_home_anyway" not in self._wrong:
            return self._end(offset, Outcome(FATES[record.op]))
        carried = self._take_along(record, waiting)
        if "carried_is_lost" in self._wrong:
            carried = ()
        if "carried_comes_last" in self._wrong and carried:
            record, carried = carried[-1], (*carried[:-1], record)
        return self._send(offset, record._replace(carried=carried), offset + 1)

    def _is_too_large(self, record: Record, waiting: list[int]) -> bool:
        if record.is_large and (record.op == SCHEDULE or "control_too_large" in self._wrong):
            return True
        return any(len(self._log[at].carried) >= self._setup.carried_max for at in waiting)

    def _take_along(self, record: Record, waiting: list[int]) -> tuple[Record, ...]:
        """What goes home before a record. A schedule replaces the one just before it at once."""
        carried: tuple[Record, ...] = ()
        for at in waiting:
            before = self._log[at]
            carried = before.carried
            if before.op == record.op == SCHEDULE:
                self._end(at, Outcome(REPLACED, record.source))
            else:
                carried += (before._replace(carried=()),)
                self._end(at, Outcome(CARRIED))
        return carried

    def _refuse(self, offset: int, record: Record, victims: list[int], waiting: list[int]) -> bool:
        """Dead-letter what is too large to go home. It replaces what is pending here, as any record
        does whose target refuses it, but what waits for home goes on.
        """
        for victim in victims:
            if victim not in waiting:
                self._settle_victim(victim, record.op, offset)
            elif "refused_takes_along" in self._wrong:
                self._end(victim, Outcome(CARRIED))
            elif not self._send(victim, self._log[victim], offset + 1):
                return False
        return self._end(offset, Outcome(TOO_LARGE))

    def _settle_victim(self, victim: int, op: str, offset: int) -> None:
        """Settle a pending schedule by the record at ``offset``."""
        record, by = self._log[victim], self._log[offset].source
        if op == FIRE and record.occurrences > 1:
            self._end(victim, Outcome(OCCURRED, by))
            self._follow(record, offset + 1)
        else:
            self._end(victim, Outcome(FATES[op], by))

    def _send(self, offset: int, record: Record, base: int) -> bool:
        """Forward a record to its home, or requeue it while that can't be written to."""
        home = self._home(record.source.offset if record.waits else offset, record.name)
        if self._state.is_away and home != self._partition:
            return self._wait_for_home(offset, record, base)
        for one in (*record.carried, record._replace(carried=())):
            written = self._state.now if "delay_from_copy" in self._wrong else one.written
            sent = one._replace(kind=HOME, at=0, base=0, waits=False, written=written)
            self._forwards.append((home, sent))
        return self._end(offset, Outcome(FORWARDED))

    def _wait_for_home(self, offset: int, record: Record, base: int) -> bool:
        if "away_blocks" in self._wrong:
            return False
        if "away_dead_letters" in self._wrong:
            return self._end(offset, Outcome(UNREADABLE))
        if "waiting_copy_is_hit_late" in self._wrong:
            base = len(self._log) + 1
        if "away_drops" not in self._wrong:
            self._requeue(record._replace(waits=True), base)
        return self._end(offset, Outcome(REQUEUED))

    # Rules 9, 10 and 12.

    def _settle_due(self, offset: int, base: int) -> bool:
        """Settle a record whose key has come."""
        record = self._log[offset]
        now = self._state.now
        if record.expires < now and (not record.waits or "expires_on_the_way" in self._wrong):
            return self._end(offset, Outcome(EXPIRED))
        if record.waits or self._is_foreign(offset):
            return self._send(offset, record, base)
        if self._parks:
            self.has_parked = True
            self._requeue(record, base)
            return self._end(offset, Outcome(REQUEUED))
        if record.occurrences > 1:
            self._end(offset, Outcome(OCCURRED))
            self._follow(record, base)
            return True
        return self._end(offset, Outcome(DELIVERED))

    def _follow(self, record: Record, base: int) -> None:
        """Append the next occurrence."""
        after = max(record.after + 1, self._state.now - record.written + 1)
        following = record._replace(after=after, occurrences=record.occurrences - 1)
        self._requeue(following, base, following.due)

    def _requeue(self, record: Record, base: int, at: int | None = None) -> None:
        at = self._state.now + 1 if at is None else at
        self._copies.append(record._replace(kind=COPY, at=at, base=base))

    def _end(self, offset: int, outcome: Outcome) -> bool:
        self._settled[offset] = outcome
        return True

    def staged(self) -> State:
        """The state with this added to the open transaction."""
        transaction = Transaction(
            self.cursor,
            tuple(sorted(self._settled.items())),
            tuple(self._copies),
            tuple(self._forwards),
            self._staged.steps + 1,
        )
        return self._state._replace(open=put(self._state.open, self._partition, transaction))
