"""Judges every transaction by the design alone: it reads topics, and knows nothing of the code.

Its own reading of rules 1, 2, 8, 10 and 12, of the output headers (design section 3) and of the
checkpoint's documented JSON. A record's canceller is the next user record of its id, which
cancels, replaces or fires it: rules 12 and 13 exist so that this holds for every copy too. An
occurrence that is delivered has the next one in the same transaction, unless its schedule has come
to its end. Every checkpoint of a slice stands on exactly the committed one before it. A record
whose id is at home elsewhere is sent there: what leaves a place or waits there is in the same
transaction somewhere else, or has had its end.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from delayservice.contract import entry
from delayservice.contract.contracts import CONTRACT_VERSION
from delayservice.engine.ports import Place
from tests.simulation.calendar import BAD, instants_after
from tests.simulation.history import (
    ABSENT,
    CANCEL,
    COPY,
    DENIED,
    FICKLE,
    FIRE,
    HELD_MS,
    INVALID,
    SCHEDULE,
    TOLERANCE_MS,
    Placed,
    ShardHistory,
    ViolationError,
    Wish,
)
from tests.simulation.plan import LEVELS_MS
from tests.simulation.sim_log import CHECKPOINTS, CLAIMS, Transaction, Written

AWAY_CODES = ("too-large",)
"""Of what can't go home."""
BAD_TARGETS = ("too-large", "target-unknown", "target-unauthorized", "target-down")
TOLD = {"target-denied": "denied"}
"""Codes of dead letters that are counted, and as what."""
EARLY_MS_MAX = 2 * TOLERANCE_MS + 2
"""By the world's clock: a clock may be off by the tolerance when it is compared, and leave what it
was by as much again before it is stopped.
"""
FINAL = (
    "delivered",
    "dead",
    "cancelled",
    "replaced",
    "expired",
    "not_pending",
    "fired",
    "lost",
    "kept",
)
CONTINUES = -1
"""``settles`` of a copy that is the next occurrence of what was delivered; of what was carried home
or refused beside another record."""


class Tenure(NamedTuple):
    """Whose the last checkpoint of a slice is: writer, claim, take-over, and its own number."""

    writer: str
    claim: int
    epoch: int
    commit: int


NOBODY = Tenure("", -1, 0, 0)


class Past(NamedTuple):
    """What a shard was until its log was truncated or its topic made anew. Whoever has not seen
    that yet still goes by it.

    Attributes:
        history: its records, and what became of them.
        topic_id: of the topic.
        stop: what was written from there on is lost.
        epoch: of the leader that lacks it; None: the topic is gone.
    """

    history: ShardHistory
    topic_id: str
    stop: int
    epoch: int | None

    def is_believed(self, fields: dict[str, Any], hit: set[int]) -> bool:
        """Whether the writer of a checkpoint has not seen what came after. ``hit``: what it settles
        with it.
        """
        if fields["topic_id"] != self.topic_id:
            return False
        if self.epoch is None:
            return True
        # Who goes by it has not gone back, has read no newer record, has read what it passed, and
        # does not settle again what a lost record had settled.
        epoch, offset = fields.get("last", (-1, -1))
        before, h = self.history.h, fields["h"]
        passed = [o for o in self.history.placed if before <= o < h]
        again = [o for o in hit if o in self.history.placed and self.history.placed[o].outcome]
        is_read = epoch < self.epoch and all(o <= offset for o in passed)
        return h >= before and is_read and not again


class Oracle:
    """All shards of all slices."""

    def __init__(
        self,
        places: Sequence[Place],
        last_stable: Callable[[Place, Transaction], int],
        windows: Collection[int],
        homes: int = 0,
        version_known: Callable[[], int] = lambda: CONTRACT_VERSION,
        elected: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """``last_stable``: of a shard's log, before the transaction that is being decided;
        ``windows``: the roll windows that nodes ask for; ``homes``: in how many partitions ids are
        to be at home; ``version_known``: of contracts, by all nodes; ``elected``: how often a
        slice's owner was.
        """
        self.shards = {place: ShardHistory(place) for place in places}
        self.commits = 0
        self.outcomes: dict[str, int] = {}
        self.held: set[tuple[Place, int]] = set()
        """Parked where pauses are tried, by shard and offset."""
        self.tenures: dict[int, Tenure] = {}
        """By slice."""
        self._last_stable = last_stable
        self._windows = windows
        self._homes = homes
        self._version_known = version_known
        self._elected = elected
        self._left: Counter[str] = Counter()
        """Sources of what the transaction at hand settles on their way home, and does not end."""
        self._taken: Counter[str] = Counter()
        """Those that it sends home, or lets wait."""
        self._refused: list[str] = []
        """Sources of what was dead-lettered beside another record that waited."""
        self._last_home: dict[tuple[Place, bytes | None], int] = {}
        """By user and id: where the record was written that came home last."""
        self._heads: dict[Place, int] = {}
        """H of each shard as the transaction at hand commits it."""
        self._past: dict[Place, list[Past]] = {}
        self._lost: set[str] = set()
        """Sources of records that logs have lost: an original may be gone, or its copy."""
        self._again: set[str] = set()
        """Sources of what came again, because the log no longer holds what had settled it."""
        self._passed: Counter[Place] = Counter()
        """How many of those nobody goes by any more: each checkpoint stands on the one before."""
        self._seen: dict[Place, ShardHistory] = {}
        """The shards as the writer of the transaction at hand knows them."""
        self._to_follow: dict[str, tuple[Placed, set[int | None]]] = {}
        """By source: occurrences that this transaction delivered, and when the next may be due."""

    # --- what users did ------------------------------------------------------------------------

    def user_wrote(self, written: Written, wish: Wish) -> None:
        """A user's record is committed."""
        if written.is_lost:
            return
        self._place(self.shards[written.place], written, wish)
        for past in reversed(self._past.get(written.place, [])):
            if past.epoch is None or written.offset >= past.stop:
                break
            self._place(past.history, written, wish)

    @staticmethod
    def _place(shard: ShardHistory, written: Written, wish: Wish) -> None:
        placed = Placed.by_user(written.offset, wish, written.timestamp_ms)
        shard.placed[written.offset] = placed

    def truncated(self, place: Place, topic_id: str, stop: int, epoch: int) -> None:
        """A log has lost everything from ``stop`` on; its leader's epoch tells."""
        before = self.shards[place]
        before.lost_from = stop
        self._past.setdefault(place, []).append(Past(before, topic_id, stop, epoch))
        gone = [record for offset, record in before.placed.items() if offset >= stop]
        self._lost |= {record.source(place) for record in gone}
        self.shards[place] = before.cut(stop)

    def h_of(self, place: Place) -> int:
        """H of a shard; 0 where there is no such shard, or its log has lost records: then nodes go
        by different ones.
        """
        is_known = place in self.shards and place not in self._past
        return self.shards[place].h if is_known else 0

    def expired(self, place: Place, start: int, read_to: int) -> None:
        """While no node was up, retention has deleted what lies below ``start``; all had read as
        far as ``read_to``.
        """
        shard = self.shards[place]
        shard.log_start, shard.read_to = start, min(read_to, start)

    def recreated(self, place: Place, topic_id: str) -> None:
        """The topic of this id is gone, another has its name."""
        self._past.setdefault(place, []).append(Past(self.shards[place], topic_id, 0, None))
        self.shards[place] = ShardHistory(place)

    def _see(self, place: Place, fields: dict[str, Any], hit: set[int]) -> ShardHistory:
        pasts = self._past.get(place, [])
        while self._passed[place] < len(pasts):
            past = pasts[self._passed[place]]
            if past.is_believed(fields, hit):
                return past.history
            self._passed[place] += 1
        return self.shards[place]

    def _carry_on(self) -> None:
        """What was settled by an earlier knowledge of a log is settled, as far as it is still
        there.
        """
        for place, seen in self._seen.items():
            pasts = self._past.get(place, [])
            at = next((n for n, past in enumerate(pasts) if past.history is seen), None)
            for n in range(len(pasts) if at is None else at, len(pasts)):
                if pasts[n].epoch is None:
                    break
                later = pasts[n + 1].history if n + 1 < len(pasts) else self.shards[place]
                kept = pasts[n].history.cut(pasts[n].stop)
                later.placed.update(kept.placed)
                later.key, later.contracts = max(later.key, kept.key), kept.contracts
                later.h = max(later.h, kept.h)

    def seen_at_once(self, written: Written, writer: str) -> None:
        """A record was delivered outside of any transaction, by a worker of this writer: another
        may send it again, as long as it is pending for that one.
        """
        headers = dict(written.headers)
        _require("delay-settles" in headers, f"{written.place} {written.offset}: at once")
        place, offset = _settled_in(headers), _number(headers["delay-settles"])
        shard = self.shards[place]
        record = shard.placed.get(offset)
        where = f"{shard.name} offset {offset}"
        if record is None:
            raise ViolationError(f"{where} is no record, but delivered")
        _require(written.topic not in ("delay_dead_letter", "delay_outcomes"), f"{where}: at once")
        _check_delivery(shard, replace(record, by=-1), written, where)  # whatever came of it since
        _require(writer not in record.sent_by, f"{where}: sent twice by {writer}")
        record.sent_by |= {writer}

    # --- what the service did ------------------------------------------------------------------

    def service_committed(self, transaction: Transaction) -> None:
        """Judge one transaction of the service."""
        self.commits += 1
        checkpoints: dict[int, Any] = {}
        for written in transaction.records:
            if written.topic == CHECKPOINTS:
                slice_no = int(written.key or b"")
                _require(slice_no not in checkpoints, f"two checkpoints of slice {slice_no}")
                checkpoints[slice_no] = json.loads(written.value or b"")
        said = {
            (topic, slice_no): fields
            for slice_no, checkpoint in checkpoints.items()
            for topic, fields in checkpoint["shards"].items()
        }
        self._heads = {place: fields["h"] for place, fields in said.items()}
        hit = _hit(transaction)
        self._seen = {p: self._see(p, fields, hit.get(p, set())) for p, fields in said.items()}
        for place, shard in self._seen.items():
            shard.head = self._heads[place]
        self._to_follow.clear()
        self._left.clear()
        self._taken.clear()
        settled = Counter(
            self._take_output(written)[1]
            for written in sorted(transaction.records, key=lambda one: one.place in self.shards)
            if written.topic not in (CHECKPOINTS, CLAIMS)
        )
        alone = settled.keys() - checkpoints.keys()
        _require(not alone, f"outputs of slices {alone} without a checkpoint")
        for source, (_, dues) in self._to_follow.items():
            _require(None in dues, f"{source}: no occurrence follows, due {dues}")
        _require(self._left == self._taken, f"{self._left} went, and {self._taken} arrived")
        for slice_no, checkpoint in checkpoints.items():
            self._check_tenure(slice_no, checkpoint, transaction.writer, settled[slice_no])
        for place, fields in said.items():
            self._read_checkpoint(place, fields, transaction)
        for place in self.shards:
            if place[1] in checkpoints:
                shard = self._shard(place)
                self._check_order(shard, transaction)
                self._settle_seen(shard)
                self._check_settled(shard)
                self._check_controls(shard)
                copied = {one.offset for one in transaction.records if one.place == place}
                self._check_absent(shard, copied)
        self._carry_on()

    def _shard(self, place: Place) -> ShardHistory:
        return self._seen.get(place) or self.shards[place]

    def _take_output(self, written: Written) -> Place:
        if written.place not in self.shards:
            return self._settled_by(written)
        is_copy = written.headers[-1][0] == "delay-copy-mac"
        return self._take_copy(written) if is_copy else self._take_envelope(written)

    def _check_tenure(
        self, slice_no: int, checkpoint: dict[str, Any], writer: str, outputs: int
    ) -> None:
        """Every checkpoint stands on the one before: whoever takes over counts on from it, and
        nobody comes back.
        """
        where = f"slice {slice_no} by {writer}"
        before = self.tenures.get(slice_no, NOBODY)
        now = Tenure(*(checkpoint[name] for name in ("writer", "claim", "epoch", "commit")))
        _require(now.writer == writer, f"{where}: a checkpoint in the name of {now.writer}")
        if now[:3] == before[:3]:
            _require(now.commit > before.commit, f"{where}: commit {now.commit} comes again")
        else:
            _require(now.claim > before.claim, f"{where}: claim {now.claim} after {before}")
            counted = max(before.epoch + 1, self._elected(slice_no))
            is_next = before.epoch < now.epoch <= counted
            _require(is_next, f"{where}: {now} does not stand on {before}")
            _require(not outputs, f"{where}: outputs with the first checkpoint of a tenure")
        self.tenures[slice_no] = now

    def _settled_by(self, written: Written) -> Place:
        headers = dict(written.headers)
        outcome = "dead" if written.topic == "delay_dead_letter" else "delivered"
        if written.topic == "delay_outcomes":
            outcome = _text(headers["delay-outcome"])
        place = _settled_in(headers)
        shard = self._shard(place)
        if outcome == "dead" and _number(headers["delay-settles"]) == CONTINUES:
            self._refuse_beside(written, headers)
            return place
        record = self._settle(shard, _number(headers["delay-settles"]), outcome)
        where = f"{shard.name} offset {record.offset}"
        if record.group or shard.home_of(record) is not None:
            self._check_away(record, outcome, where)
        if outcome == "delivered":
            self._check_delivered(shard, record, written, where)
        elif outcome == "dead":
            code = _check_dead_letter(shard, record, written, where)
            if code in TOLD:
                self.outcomes[TOLD[code]] = self.outcomes.get(TOLD[code], 0) + 1
        else:
            _check_told(shard, record, written, where)
        return place

    def _check_delivered(
        self, shard: ShardHistory, record: Placed, written: Written, where: str
    ) -> None:
        headers = dict(written.headers)
        record.by = _number(headers.get("delay-fired-by", b"-1"))
        if record.by >= 0 and record.wish.cron and not record.number:
            _begin(record, record, _number(headers["delay-due-at"]), where)
        _check_delivery(shard, record, written, where)
        if record.wish.recurs:
            dues = _next_dues(record, written.sender_ms)
            self._to_follow[record.source(shard.place)] = (record, dues)

    # --- on the way home -----------------------------------------------------------------------

    def _take_envelope(self, written: Written) -> Place:
        """Take what came home; return the shard of what it settles."""
        where = f"{written.place} envelope {written.offset}"
        names = [name for name, _ in written.headers[-2:]]
        _require(names == ["delay-home", "delay-home-mac"], f"{where}: neither copy nor envelope")
        fields = json.loads(written.headers[-2][1] or b"")
        source = base64.b64decode(fields["source"]).decode()
        place, user = self._users(source)
        _require(fields["shard"] == f"{place[0]}:{place[1]}", f"{where}: from {fields['shard']}")
        shard = self._shard(place)
        home = (place[0], shard.home_of(user))
        _require(written.place == home, f"{where}: {source} is at home in {home}")
        _require(fields["op"] == user.wish.op, f"{where}: {fields['op']}")
        _require(fields["written"] == user.timestamp_ms, f"{where}: written {fields['written']}")
        sent = (written.key, written.value, list(written.headers[:-2]))
        _require(sent == user.wish.sent_home(), f"{where}: {sent} is not as it was")
        if fields.get("settles", CONTINUES) != CONTINUES:
            self._release(shard, fields["settles"], "forwarded")
        self._taken[source] += 1
        last = self._last_home.get((place, user.wish.record_id), -1)
        _require(user.offset > last, f"{where}: {source} comes home after {last}")
        self._last_home[place, user.wish.record_id] = user.offset
        self.shards[written.place].placed[written.offset] = replace(
            user,
            offset=written.offset,
            timestamp_ms=written.timestamp_ms,
            since=written.offset,
            home=place,
            is_at_home=True,
            outcome="",
            in_commit=-1,
        )
        return place

    def _users(self, source: str) -> tuple[Place, Placed]:
        """A user's record, by its source."""
        topic, partition, offset = source.rsplit(":", 2)
        place = (topic, int(partition))
        user = self._shard(place).placed.get(int(offset)) if place in self.shards else None
        if user is None or not user.is_users or user.is_at_home:
            raise ViolationError(f"{source} is no user's record, but sent home")
        return place, user

    def _release(self, shard: ShardHistory, offset: int, outcome: str) -> Placed:
        """Settle a record that goes home, or what waits for that."""
        record = self._settle(shard, offset, outcome)
        self._left.update(record.group or [record.source(shard.place).partition("#")[0]])
        return record

    def _take_waiting(self, shard: ShardHistory, written: Written, fields: dict[str, Any]) -> None:
        """Take a copy that waits for its home, with what it carries."""
        where = f"{shard.name} waiting {written.offset}"
        said = json.loads(written.headers[-3][1] or b"")
        settled = self._release(shard, fields["settles"], "copied")
        if said.get("settles", CONTINUES) != CONTINUES:
            along = self._release(shard, said["settles"], "carried")
            by = shard.canceller_of(along)
            _require(by == settled.offset, f"{where}: took along what belongs to {by}")
        sources, users = [], []
        key, value, headers = written.key, written.value, list(written.headers[:-3])
        bodies = [_carried(one) for one in said.get("carried", ())]
        for *body, one in (*bodies, (key, value, headers, said)):
            source = base64.b64decode(one["source"]).decode()
            place, user = self._users(source)
            _require(place == shard.place, f"{where}: {source} waits elsewhere")
            _require(tuple(body) == user.wish.sent_home(), f"{where}: {source} is not as it was")
            told = (one["op"], one["written"])
            _require(told == (user.wish.op, user.timestamp_ms), f"{where}: {source} is {told}")
            sources.append(source)
            users.append(user)
        offsets = [user.offset for user in users]
        _require(offsets == sorted(set(offsets)), f"{where}: {sources} out of order")
        home = (fields["target"], fields["partition"])
        right = {(shard.place[0], shard.home_of(user)) for user in users}
        _require({home} == right, f"{where}: waits for {home}, not {right}")
        _require(len({user.wish.record_id for user in users}) == 1, f"{where}: several ids")
        identity = base64.b64decode(fields["id"] or b"")
        _require(identity == users[-1].wish.record_id, f"{where}: id {identity!r}")
        _require(base64.b64decode(fields["source"]).decode() == sources[-1], f"{where}: source")
        _require(fields["at"] > written.sender_ms, f"{where}: waits until {fields['at']}")
        _require(fields["attempt"] == settled.attempt + 1, f"{where}: {fields['attempt']}")
        self._taken.update(sources)
        self.outcomes["waits"] = self.outcomes.get("waits", 0) + 1
        by = shard.canceller_of(settled)
        is_passed = by is not None and by < self._head(shard.place)
        shard.placed[written.offset] = replace(
            users[-1],
            offset=written.offset,
            timestamp_ms=written.timestamp_ms,
            at_ms=fields["at"],
            due_ms=fields["due"],
            attempt=fields["attempt"],
            base=fields["base"],
            since=by if is_passed and by is not None else settled.since,
            group=tuple(sources),
            outcome="",
            in_commit=-1,
        )

    def _check_away(self, record: Placed, outcome: str, where: str) -> None:
        """What is to go home, or waits for that, ends there, but for what is too large, a schedule
        that another one replaces while it waits, and a cancel or fire that has done its work.
        """
        *before, _ = record.group or ("",)
        if record.group and outcome in ("dead", "replaced"):
            self._left.update(before)
        if outcome == "replaced":
            is_right = bool(record.group) and record.wish.op == SCHEDULE
        else:
            done = {CANCEL: "cancelled", FIRE: "fired", ABSENT: "kept"}.get(record.wish.op, "")
            is_right = outcome == "dead" or (outcome == done and not record.group)
        _require(is_right, f"{where}: {record.wish.op} is {outcome} away from home")

    def _refuse_beside(self, written: Written, headers: dict[str, bytes | None]) -> None:
        """What had waited before another record is refused with it."""
        source = _text(headers["delay-source"])
        _, user = self._users(source)
        key, value, own = user.wish.sent_home()
        where = f"{source} refused"
        _require((written.key, written.value) == (key, value), f"{where}: not as it was")
        _require(written.headers[: len(own)] == own, f"{where}: {written.headers}")
        code = _text(headers["delay-error"])
        _require(code in AWAY_CODES, f"{where} as {code}")
        self._taken[source] += 1
        self._refused.append(source)

    def _settle(self, shard: ShardHistory, offset: int, outcome: str) -> Placed:
        record = shard.placed.get(offset)
        if record is None:
            raise ViolationError(f"{shard.name} offset {offset} is no record, but {outcome}")
        if record.outcome and shard.may_come_again(record):
            self._again.add(record.source(shard.place))
            record.by = -1
        elif record.outcome:
            raise ViolationError(
                f"{shard.name} offset {offset} settled twice: {record.outcome}, then {outcome}"
            )
        if shard.is_freed(record):
            self.outcomes["freed"] = self.outcomes.get("freed", 0) + 1
        record.outcome = outcome
        record.in_commit = self.commits
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        return record

    # --- copies --------------------------------------------------------------------------------

    def _take_copy(self, written: Written) -> Place:
        """Take a copy; return the shard of what it settles."""
        shard = self.shards[written.place]
        where = f"{shard.name} copy {written.offset}"
        fields = json.loads(dict(written.headers)["delay-copy"] or b"")
        settling = self._shard_of(fields, shard)
        if fields["target"] == written.topic:
            self._take_waiting(shard, written, fields)
            return shard.place
        source = base64.b64decode(fields["source"]).decode()
        if fields["settles"] == CONTINUES:
            placed = self._follow(written, fields, source, where)
        else:
            placed = self._copy(settling, written, fields, where)
        wish = placed.wish
        _require(source == placed.source(shard.place), f"{where}: source {source}")
        identity = base64.b64decode(fields["id"]) if fields["id"] is not None else None
        _require(identity == wish.record_id, f"{where}: id {identity!r}")
        _require(fields["due"] == placed.due_ms, f"{where}: due {fields['due']}")
        _require(fields["attempt"] == placed.attempt, f"{where}: attempt {fields['attempt']}")
        waits = placed.attempt > 1 or placed.at_ms <= placed.due_ms or "turn" in fields
        waits = waits or (settling.place, fields["settles"]) in self.held
        _require(waits, f"{where}: at {placed.at_ms}, due {placed.due_ms}")
        _require(written.key == wish.key, f"{where}: key")
        _require(written.value == wish.value, f"{where}: value")
        _require(tuple(written.headers[:-2]) == wish.own, f"{where}: own headers")
        if written.is_lost:  # before its transaction was committed, so no owner reads it back
            self._lost.add(source)
        else:
            shard.placed[written.offset] = placed
        return settling.place

    def _shard_of(self, fields: dict[str, Any], shard: ShardHistory) -> ShardHistory:
        """Where what a copy settles lies: records of level topics are parked elsewhere."""
        named = fields.get("shard")
        if named is None:
            return self._shard(shard.place)
        topic, _, partition = named.rpartition(":")
        return self._shard((topic, int(partition)))

    def _copy(
        self, shard: ShardHistory, written: Written, fields: dict[str, Any], where: str
    ) -> Placed:
        """The record that a copy settles, as it goes on: rolled, parked, or at its first
        occurrence. ``shard`` is the one of that record.
        """
        settled = self._settle(shard, fields["settles"], "copied")
        is_away = settled.group or shard.home_of(settled) is not None
        _require(not is_away, f"{where}: a copy of what goes home")
        again = replace(
            settled,
            is_at_home=False,
            offset=written.offset,
            home=settled.home or (None if written.place == shard.place else shard.place),
            timestamp_ms=written.timestamp_ms,
            at_ms=fields["at"],
            outcome="",
            base=fields["base"],
        )
        settled.by = self._fired_by(shard, settled)
        again.since = max(again.since, shard.since_of_next(settled, again.base))
        if (
            settled.by >= 0
        ):  # H waits for a copy in flight: what H passes now, it has settled itself
            again.since = settled.by
        if fields["attempt"] == settled.attempt + 1:
            if settled.wish.cron and not settled.number:
                settled.is_put_off = b"#" not in base64.b64decode(fields["source"])
                if not settled.is_put_off:
                    _begin(again, settled, fields["due"], where)
            again.attempt += 1
            again.was_fired = settled.was_fired or settled.by >= 0
            return again
        is_armed = bool(settled.wish.cron) and not settled.number
        if is_armed and settled.op == ABSENT:  # by a clock that is behind it is not due yet
            settled.is_put_off = b"#" not in base64.b64decode(fields["source"])
            is_armed = not settled.is_put_off
        is_held = (shard.place, settled.offset) in self.held
        is_rolled = not (is_armed or is_held or "turn" in fields)
        is_freed = is_rolled and shard.is_freed(settled)
        # Denied, it goes on only while its letter can't be written.
        _require(is_rolled or settled.wish.target != DENIED, f"{where}: denied, and goes on")
        if is_armed:
            # It may have been put off before, by a node that denied its target.
            again.attempt, again.is_put_off = 1, False
            _begin(again, settled, fields["due"], where)
            return again
        if "turn" in fields:
            is_due = settled.was_fired or settled.due_ms <= written.sender_ms
            _require(is_due, f"{where}: over a limit before its time")
            return again
        if is_held:
            is_told = settled.was_fired or settled.by < 0 or settled.due_ms <= written.sender_ms
            _require(is_told, f"{where}: fired, and held as any")
            wait_ms = fields["at"] - written.sender_ms
            _require(0 < wait_ms <= 15 * HELD_MS, f"{where}: held for {wait_ms} ms")
            return again
        early = shard.contracts and shard.key_of(settled)[0] < settled.due_ms
        _require(bool(early) or is_freed, f"{where}: rolled at its due time")
        _require(not (settled.was_fired or settled.by >= 0), f"{where}: fired, and rolled")
        return again

    def _head(self, place: Place) -> int:
        """H of the checkpoint in the same transaction."""
        _require(place in self._heads, f"{place}: outputs are visible without their cursor")
        return self._heads[place]

    def _fired_by(self, shard: ShardHistory, record: Placed) -> int:
        if shard.is_freed(record):
            return -1
        head = self._head(shard.place)
        fires = [by for by in shard.cancellers_of(record) if by is not None and by < head]
        return min((by for by in fires if shard.placed[by].op == FIRE), default=-1)

    def _follow(self, written: Written, fields: dict[str, Any], source: str, where: str) -> Placed:
        """The occurrence after one that the same transaction delivered before."""
        self.outcomes["recurred"] = self.outcomes.get("recurred", 0) + 1
        stem, _, number = source.partition("#")
        before, dues = self._to_follow.pop(f"{stem}#{int(number) - 1}", (None, set()))
        if before is None:
            raise ViolationError(f"{where}: {source} follows nothing")
        if before.source(written.place) in self._again:
            self._again.add(source)
        _require(fields["due"] in dues, f"{where}: due {fields['due']}, not {dues}")
        base = fields["base"]
        return Placed(
            written.offset,
            before.wish,
            written.timestamp_ms,
            before.origin,
            fields["due"],
            before.number + 1,
            since=max(before.by, self.shards[written.place].since_of_next(before, base)),
            at_ms=fields["at"],
            base=base,
            home=before.home,
        )

    def _read_checkpoint(
        self, place: Place, said: dict[str, Any], transaction: Transaction
    ) -> None:
        shard = self._shard(place)
        key, where = (said["k"][0], said["k"][1]), shard.name
        _require(key >= shard.key, f"{where}: K went back from {shard.key} to {key}")
        _require(said["h"] >= shard.h, f"{where}: H went back from {shard.h} to {said['h']}")
        stable = self._last_stable(place, transaction)
        is_true = said["h"] <= stable or shard is not self.shards[place]
        _require(is_true, f"{where}: H {said['h']} is beyond what is stable, {stable}")
        windows = [
            (
                c["from"],
                c["contract"]["roll_window_ms"],
                c["contract"]["roll_spread_ms"],
                c["contract"].get("id_partitions", 0),
            )
            for c in said["contracts"]
        ]
        self._check_homes(shard, [(c["from"], c["contract"]) for c in said["contracts"]])
        for start, window_ms, _, _ in (one for one in windows if one not in shard.contracts):
            _require(window_ms in self._windows, f"{where}: a contract that nobody asks for")
            _require(start >= shard.h, f"{where}: a contract from {start}, below H {shard.h}")
        self._skip_lost(shard, said)
        dropped = [one for one in shard.contracts if one[0] < windows[0][0]]  # no longer in the log
        walked = [offset for offset in shard.placed if offset < shard.h and shard.contracts]
        before = [(shard.window_ms(offset), shard.id_partitions(offset)) for offset in walked]
        shard.contracts = dropped + windows
        now = [(shard.window_ms(offset), shard.id_partitions(offset)) for offset in walked]
        are_kept = now == before
        _require(are_kept, f"{where}: another contract for records below H {shard.h}")
        shard.h_before, shard.key, shard.h = shard.h, key, said["h"]

    def _check_homes(self, shard: ShardHistory, contracts: list[tuple[int, Any]]) -> None:
        """Ids stay at home where they are, and find home only by what all nodes know."""
        counts = [contract.get("id_partitions", 0) for _, contract in contracts]
        is_kept = counts == sorted(counts) and set(counts) <= {0, self._homes}
        had = any(contract[3] for contract in shard.contracts)
        _require(is_kept and (not had or counts[-1] > 0), f"{shard.name}: homes in {counts}")
        version = max(contract["version"] for _, contract in contracts)
        _require(version <= self._version_known(), f"{shard.name}: version {version} is not known")

    @property
    def have_homes(self) -> bool:
        """Whether ids find home in every partition."""
        places = [place for place in self.shards if place[0] not in LEVELS_MS]
        return all(any(c[3] for c in self.shards[place].contracts) for place in places)

    def _skip_lost(self, shard: ShardHistory, said: dict[str, Any]) -> None:
        """H gets to the start of the log only together with word of what it skips. What nobody can
        walk and nobody has stored is lost: controls, and records that were late.
        """
        if shard.h >= shard.log_start or shard.unwalked[1]:
            return
        first, stop, _ = said.get("lost", [(0, 0, 0)])[-1]
        if (first, stop) != (shard.h, shard.log_start):
            why = f"{shard.name}: H went over {shard.log_start}, where the log starts, without word"
            _require(said["h"] == shard.h, why)  # it was committed by who has not seen that
            return
        is_level = shard.place[0] in LEVELS_MS
        if is_level:
            shard.read_to = first
        read_to = min(max(first, shard.read_to), stop)
        shard.unwalked = (first, stop)
        for record in shard.placed.values():
            if record.outcome or not first <= record.offset < stop:
                continue
            is_pending = record.op in (SCHEDULE, COPY) and shard.key_of(record) > shard.key
            if not is_pending or record.offset >= read_to:
                record.outcome = "lost"
                self.outcomes["lost"] = self.outcomes.get("lost", 0) + 1

    # --- promises ------------------------------------------------------------------------------

    def _check_order(self, shard: ShardHistory, transaction: Transaction) -> None:
        """K settles in key order: what H had passed before the transaction is delivered so, to each
        partition of a target.
        """
        last: dict[Place, tuple[int, int]] = {}
        for written in transaction.records:
            headers = dict(written.headers)
            is_by_k = headers.keys().isdisjoint(("delay-error", "delay-fired-by", "delay-outcome"))
            if written.place in self.shards or "delay-settles" not in headers or not is_by_k:
                continue
            if _settled_in(headers) != shard.place:
                continue
            record = shard.placed.get(_number(headers["delay-settles"]))
            if record is None or record.outcome != "delivered" or record.offset >= shard.h_before:
                continue
            if shard.is_freed(record):  # by H
                continue
            key = shard.key_of(record)
            before = last.get(written.place, (0, -1))
            _require(key > before, f"{shard.name}: {key} was delivered after {before}")
            last[written.place] = key

    def _settle_seen(self, shard: ShardHistory) -> None:
        """What consumers have is delivered when the cursor passes it, if nothing else was said."""
        for record in shard.placed.values():
            if record.sent_by and not record.outcome and shard.has_passed(record) == {True}:
                record.outcome = "delivered"
                record.in_commit = self.commits
                self.outcomes["delivered"] = self.outcomes.get("delivered", 0) + 1

    def _check_settled(self, shard: ShardHistory) -> None:
        """Rule 1."""
        for record in shard.placed.values():
            passed = shard.has_passed(record)
            if record.offset >= shard.lost_from and not record.outcome:
                continue  # whoever goes by the log as it was may know that it has lost its end
            if bool(record.outcome) not in passed:
                raise ViolationError(
                    f"{shard.name} offset {record.offset} ({record.op}) "
                    f"is {record.outcome or 'pending'} with K={shard.key} H={shard.h}"
                )

    def _check_controls(self, shard: ShardHistory) -> None:
        """Rule 8: a control says ``cancelled`` or ``fired`` iff it settled something."""
        now = [r for r in shard.placed.values() if r.in_commit == self.commits]
        hit = {record.by for record in now}
        perhaps: set[int] = set()
        for record in now:
            if (
                record.outcome in ("dead", "expired") and not record.group
            ):  # by a fire, or before it came
                sure = shard.key_of(record) > shard.key
                (hit if sure else perhaps).add(shard.canceller_of(record) or -1)
        for control in now:
            if control.op not in (CANCEL, FIRE):
                continue
            if control.outcome in ("forwarded", "copied", "dead"):
                is_free = control.offset not in hit and shard.home_of(control) is not None
                _require(is_free, f"{shard.name} {control.offset} goes on, and has done its work")
                continue
            done = "cancelled" if control.wish.op == CANCEL else "fired"
            honest = {done if control.offset in hit else "not_pending"}
            if control.wish.op == FIRE and control.offset in perhaps:
                honest.add(done)
            if control.outcome not in honest:
                raise ViolationError(
                    f"{shard.name} {control.wish.op} {control.offset} says {control.outcome}, "
                    f"was {honest}"
                )

    def _check_absent(self, shard: ShardHistory, copied: Collection[int]) -> None:
        """An absent record is kept out if a record of its id is pending when H passes it, and only
        then. ``copied``: offsets of copies that this transaction makes.
        """
        if shard.log_start or self._past.get(shard.place):
            return  # nobody knows for certain what was pending
        for absent in shard.placed.values():
            is_here = absent.op == ABSENT and shard.home_of(absent) is None
            if not is_here or absent.in_commit != self.commits:
                continue
            others = [
                self._was_pending(shard, record, absent)
                for record in shard.placed.values()
                if record.wish.record_id == absent.wish.record_id
                and record.offset not in copied
                and record.wish.record_id not in shard.doubled_ids
            ]
            where = f"{shard.name} offset {absent.offset}"
            if absent.outcome == "kept":
                is_honest = any(other is not False for other in others)
                is_honest = is_honest or absent.wish.record_id in shard.doubled_ids
                _require(is_honest, f"{where}: kept, and nothing of its id was pending")
            else:
                found = any(other is True for other in others)
                _require(not found, f"{where}: {absent.outcome}, although its id was pending")

    def _was_pending(self, shard: ShardHistory, record: Placed, absent: Placed) -> bool | None:
        """Whether a record was pending when H passed an absent one of its id; None: perhaps."""
        is_earlier = record.op == COPY or record.offset < absent.offset
        is_delayed = record.op in (SCHEDULE, COPY)
        is_delayed = is_delayed or (record.op == ABSENT and record.outcome == "copied")
        if not (is_earlier and is_delayed):
            return False
        if record.group or shard.home_of(record) is not None:
            return None  # on its way home
        by = shard.canceller_of(record)
        is_hit = by is not None and by < absent.offset
        if record.outcome and record.in_commit != self.commits:
            return False
        if record.outcome == "copied":
            return True
        is_sure = not record.outcome or record.outcome in ("cancelled", "replaced")
        return not is_hit if is_sure or record.by >= 0 else None

    @property
    def is_drained(self) -> bool:
        """Whether nothing is pending."""
        return all(r.outcome for shard in self.shards.values() for r in shard.placed.values())

    def is_drained_but(self, slice_no: int) -> bool:
        """Whether nothing is pending in the other slices."""
        return all(place[1] == slice_no for place, _ in self.pending())

    def pending(self) -> list[tuple[Place, int]]:
        """What is not settled."""
        return [
            (shard.place, record.offset)
            for shard in self.shards.values()
            for record in shard.placed.values()
            if not record.outcome
        ]

    def check_lateness(self, due_by_ms: int, but: str, away: Place | None = None) -> None:
        """While all is well, what was due by then is settled, whatever else there is to do.
        ``but``: a target that is bad; ``away``: a shard whose log can't be written to. Where both
        are, what is bad can't be put off, and keeps back the rest of that slice, but of no other.
        """
        for shard in self.shards.values():
            for record in shard.placed.values():
                if record.outcome or record.wish.target == but or record.op not in (SCHEDULE, COPY):
                    continue
                if record.group or shard.place == away:
                    continue
                if but and away is not None and shard.place[1] == away[1]:
                    continue
                is_away = shard.home_of(record) is not None  # it does not wait to be due
                at_ms = record.timestamp_ms if is_away else shard.key_of(record)[0]
                is_due = shard.contracts and at_ms < due_by_ms
                _require(not is_due, f"{shard.name} offset {record.offset} is late")

    def check_reach(self) -> None:
        """No record waits longer than the widest roll window of its shard's contracts, from when it
        was appended: Spark reads the log from the time on that follows from that.
        """
        for shard in self.shards.values():
            widest_ms = max((window_ms for _, window_ms, *_ in shard.contracts), default=0)
            for record in shard.placed.values():
                if shard.contracts and (record.op == COPY or not record.wish.level_ms):
                    waits_ms = shard.key_of(record)[0] - record.timestamp_ms
                    reach = f"{shard.name} offset {record.offset} waits {waits_ms} ms"
                    _require(waits_ms <= widest_ms + EARLY_MS_MAX, f"{reach}, window {widest_ms}")

    def check_chains(self) -> None:
        """Once drained: every user record, and every occurrence, has exactly one final outcome."""
        self.check_reach()
        final: dict[str, list[str]] = {}
        for shard in self.shards.values():
            for record in shard.placed.values():
                is_away = record.group or shard.home_of(record) is not None
                if is_away and record.outcome not in FINAL:
                    continue  # it has gone on
                if record.is_put_off and not record.number:
                    continue  # its copy may begin where it is fired
                ends = final.setdefault(record.source(shard.place), [])
                if record.outcome in FINAL:
                    ends.append(record.outcome)
                elif record.wish.cron and not record.number:
                    ends.append("begun")
        for source in self._refused:
            place, user = self._users(source)
            final.setdefault(user.source(place), []).append("dead")
        for source, outcomes in final.items():
            # A lost record may have a copy elsewhere, and another record stands where it stood.
            fewest = 0 if source in self._lost else 1
            most = 2 if source in self._lost | self._again else 1
            _require(fewest <= len(outcomes) <= most, f"{source} ended as {outcomes}")


def _carried(one: list[Any]) -> tuple[bytes | None, bytes | None, list[Any], dict[str, Any]]:
    """Key, value and headers of what is carried, and what is said of it."""
    kind, source, written, (*body, headers) = one
    key, value = (None if b is None else base64.b64decode(b) for b in body)
    named = [(name, None if b is None else base64.b64decode(b)) for name, b in headers]
    ops = {entry.SCHEDULE: "schedule", entry.CANCEL: "cancel", entry.FIRE: "fire"}
    op = (ops | {entry.ABSENT: ABSENT})[kind]
    return key, value, named, {"op": op, "source": source, "written": written}


def _hit(transaction: Transaction) -> dict[Place, set[int]]:
    """What the outputs of a transaction settle, copies aside."""
    found: dict[Place, set[int]] = {}
    for written in transaction.records:
        headers = dict(written.headers)
        if "delay-settles" in headers:
            offset = _number(headers["delay-settles"])
            found.setdefault(_settled_in(headers), set()).add(offset)
    return found


def _settled_in(headers: dict[str, bytes | None]) -> Place:
    """The shard of what an output settles: where its source lies, unless another is named."""
    named = _text(headers.get("delay-shard")) or _text(headers["delay-source"]).rsplit(":", 1)[0]
    topic, _, partition = named.rpartition(":")
    return topic, int(partition)


def _first_dues(record: Placed) -> set[int | None]:
    """When the first occurrence of a cron schedule may be due, by whoever's calendar."""
    after_ms = record.wish.due_ms - 1 if record.wish.due_ms else record.due_ms
    return _before_end(record.wish, instants_after(record.wish.cron, after_ms))


def _begin(record: Placed, written: Placed, due_ms: int, where: str) -> None:
    """A cron schedule has its first occurrence: appended for its time, or fired."""
    _require(due_ms in _first_dues(written), f"{where}: begins at {due_ms}")
    record.number, record.due_ms = 1, due_ms


def _next_dues(record: Placed, now_ms: int) -> set[int | None]:
    """When the occurrence after one that is delivered now may be due; None: there is none."""
    wish = record.wish
    if record.left == 1:
        return {None}
    if wish.cron:
        return _before_end(wish, instants_after(wish.cron, max(record.due_ms, now_ms)))
    due_ms = record.due_ms + wish.every_ms
    while due_ms <= now_ms:
        due_ms += wish.every_ms
    return _before_end(wish, {due_ms})


def _before_end(wish: Wish, dues: set[int | None]) -> set[int | None]:
    end_ms = wish.expires_ms
    return {None if due is None or (end_ms is not None and due > end_ms) else due for due in dues}


def _check_delivery(shard: ShardHistory, record: Placed, written: Written, where: str) -> None:
    wish = record.wish
    _require(record.op in (SCHEDULE, COPY, ABSENT), f"{where}: delivered a {record.op}")
    _require(
        not wish.recurs or record.number > 0, f"{where}: delivered before its first occurrence"
    )
    if record.by >= 0:
        _require(record.by in shard.cancellers_of(record), f"{where}: fired by {record.by}")
        _require(shard.placed[record.by].op == FIRE, f"{where}: {record.by} is no fire")
    late_ms = written.sender_ms - record.due_ms
    in_time = late_ms >= 0 or record.by >= 0 or record.was_fired
    _require(in_time, f"{where}: delivered {-late_ms} ms early")
    true_ms = written.timestamp_ms - record.due_ms
    in_time = true_ms >= -EARLY_MS_MAX or record.by >= 0 or record.was_fired
    _require(in_time, f"{where}: delivered {-true_ms} ms early by the world's clock")
    if wish.expires_ms is not None:
        _require(written.sender_ms <= wish.expires_ms, f"{where}: delivered after it expired")
    expected: list[tuple[str, bytes | None]] = [
        *wish.own,
        ("delay-due-at", b"%d" % record.due_ms),
        ("delay-source", record.source(shard.place).encode()),
        ("delay-settles", b"%d" % record.offset),
    ]
    if record.home is not None:
        expected.append(("delay-shard", shard.name.encode()))
    if wish.record_id is not None:
        expected.append(("delay-id", wish.record_id))
    if record.attempt > 1:
        expected.append(("delay-attempt", b"%d" % record.attempt))
    if record.by >= 0:
        expected.append(("delay-fired-by", b"%d" % record.by))
    _require(written.topic == wish.target, f"{where}: went to {written.topic}")
    _require(written.key == wish.key, f"{where}: key {written.key!r}")
    _require(written.value == wish.value, f"{where}: value {written.value!r}")
    _require(written.headers == expected, f"{where}: headers {written.headers}")


def _check_dead_letter(shard: ShardHistory, record: Placed, written: Written, where: str) -> str:
    wish, headers = record.wish, dict(written.headers)
    code = _text(headers["delay-error"])
    allowed = (wish.code,) if wish.op == INVALID else BAD_TARGETS
    if wish.op != INVALID and wish.target in (DENIED, FICKLE):
        allowed = ("target-denied", *(BAD_TARGETS if wish.target == FICKLE else ()))
    if wish.cron and not record.number and (wish.cron == BAD or None in _first_dues(record)):
        is_known = wish.target not in (DENIED, FICKLE)
        allowed = ("cron-invalid",) if is_known else (*allowed, "cron-invalid")
    if wish.is_large:
        allowed = (*allowed, "too-large")
    if record.group or shard.home_of(record) is not None:
        allowed = AWAY_CODES
    _require(code in allowed, f"{where}: dead-lettered as {code}, not {allowed}")
    key, value, own = wish.sent_home() if record.group else (wish.key, wish.value, list(wish.own))
    _require(written.key == key, f"{where}: key {written.key!r}")
    _require(written.value == value, f"{where}: value {written.value!r}")
    kept = [header for header in written.headers if header in own]
    _require(kept == own, f"{where}: own headers {written.headers}")
    if wish.op in (SCHEDULE, ABSENT):
        again = all(header in written.headers for header in wish.recurrence(record.left))
        _require(again, f"{where}: recurrence in {written.headers}")
    return code


# No pending record ends with one of them.
_OUTCOMES_OF_CONTROLS: Final = {
    "not_pending": (CANCEL, FIRE),
    "fired": (FIRE,),
    "kept": (ABSENT,),
}


def _check_told(shard: ShardHistory, record: Placed, written: Written, where: str) -> None:
    """What the outcome topic says."""
    headers, outcome = dict(written.headers), record.outcome
    of_controls = _OUTCOMES_OF_CONTROLS.get(outcome)
    is_theirs = of_controls is None or record.op in of_controls
    _require(is_theirs, f"{where}: {outcome} of a {record.op}")
    if outcome == "expired":
        expires_ms = record.wish.expires_ms
        _require(expires_ms is not None and expires_ms < written.sender_ms, f"{where}: expired")
    elif outcome in ("cancelled", "replaced") and "delay-settled-by" in headers:
        record.by = _number(headers["delay-settled-by"])
        _check_victim(shard, record, where)
        by = shard.placed[record.by]
        told = by.source(shard.place).partition("#")[0] if by.is_at_home else ""
        said = _text(headers.get("delay-settled-by-source"))
        _require(said == told, f"{where}: settled by {said}, was {told or 'here'}")
    elif record.op in (CANCEL, FIRE, ABSENT):
        source = _text(headers.get("delay-source"))
        is_right = source == record.source(shard.place).partition("#")[0]
        _require(is_right, f"{where}: told of {source}")


def _check_victim(shard: ShardHistory, record: Placed, where: str) -> None:
    expected = shard.cancellers_of(record)
    _require(record.by in expected, f"{where}: settled by {record.by}, should be {expected}")
    by = shard.placed[record.by]
    honest = "cancelled" if by.wish.op == CANCEL else "replaced"
    _require(record.outcome == honest, f"{where}: {record.outcome}, was {honest}")


def _require(promise: bool, broken: str) -> None:  # noqa: FBT001  # a plain condition
    if not promise:
        raise ViolationError(broken)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _number(value: bytes | None) -> int:
    return int(value or b"")
