"""Judges every transaction by the design alone: it reads topics, and knows nothing of the code.

Its own reading of rules 1, 2, 8, 10 and 12, of the output headers (design section 3) and of the
checkpoint's documented JSON. A record's canceller is the next user record of its id, which
cancels, replaces or fires it: rules 12 and 13 exist so that this holds for every copy too. An
occurrence that is delivered has the next one in the same transaction, unless its schedule has come
to its end.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.calendar import BAD, instants_after
from tests.simulation.history import (
    CANCEL,
    COPY,
    FIRE,
    INVALID,
    SCHEDULE,
    Placed,
    ShardHistory,
    ViolationError,
    Wish,
)
from tests.simulation.sim_log import Transaction, Written
from tests.simulation.sim_ports import HELD_MS

FINAL = ("delivered", "dead", "cancelled", "replaced", "expired", "not_pending", "fired")
CONTINUES = -1
"""``settles`` of a copy that is the next occurrence of what was delivered."""


class Oracle:
    """All shards of the slice."""

    def __init__(self, topics: tuple[str, ...], last_stable: Callable[[str], int]) -> None:
        self.shards = {topic: ShardHistory(topic) for topic in topics}
        self.commits = 0
        self.outcomes: dict[str, int] = {}
        self.held: set[tuple[str, int]] = set()
        """Parked where pauses are tried, by delay topic and offset."""
        self._last_stable = last_stable
        self._heads: dict[str, int] = {}
        """H of each shard as the transaction at hand commits it."""
        self._to_follow: dict[str, tuple[Placed, set[int | None]]] = {}
        """By source: occurrences that this transaction delivered, and when the next may be due."""

    # --- what users did ------------------------------------------------------------------------

    def user_wrote(self, written: Written, wish: Wish) -> None:
        """A user's record is committed."""
        self.shards[written.topic].placed[written.offset] = Placed.by_user(
            written.offset, wish, written.timestamp_ms
        )

    # --- what the service did ------------------------------------------------------------------

    def service_committed(self, transaction: Transaction) -> None:
        """Judge one transaction of the service."""
        self.commits += 1
        checkpoints = [w for w in transaction.records if w.topic == "delay_checkpoint"]
        if len(checkpoints) != 1:
            raise ViolationError(f"a transaction with {len(checkpoints)} checkpoints")
        said = json.loads(checkpoints[0].value or b"")["shards"]
        self._heads = {topic: fields["h"] for topic, fields in said.items()}
        self._to_follow.clear()
        for written in transaction.records:
            if written.topic in self.shards:
                self._take_copy(written)
            elif written.topic != "delay_checkpoint":
                self._settled_by(written)
        for source, (_, dues) in self._to_follow.items():
            _require(None in dues, f"{source}: no occurrence follows, due {dues}")
        self._read_checkpoint(said)
        for shard in self.shards.values():
            self._check_settled(shard)
            self._check_controls(shard)

    def _settled_by(self, written: Written) -> None:
        headers = dict(written.headers)
        if written.topic == "delay_outcomes":
            topic = _text(headers["delay-shard"]).rsplit(":", 1)[0]
            outcome = _text(headers["delay-outcome"])
        else:
            topic = _text(headers["delay-source"]).rsplit(":", 2)[0]
            outcome = "dead" if written.topic == "delay_dead_letter" else "delivered"
        shard = self.shards[topic]
        record = self._settle(shard, _number(headers["delay-settles"]), outcome)
        where = f"{topic} offset {record.offset}"
        if outcome == "delivered":
            record.by = _number(headers.get("delay-fired-by", b"-1"))
            if record.by >= 0 and record.wish.cron and not record.number:
                _begin(record, record, _number(headers["delay-due-at"]), where)
            _check_delivery(shard, record, written, where)
            if record.wish.recurs:
                dues = _next_dues(record, written.sender_ms)
                self._to_follow[record.source(topic)] = (record, dues)
        elif outcome == "dead":
            _check_dead_letter(record, written, where)
        elif outcome == "expired":
            expires_ms = record.wish.expires_ms
            _require(expires_ms is not None and expires_ms < written.sender_ms, f"{where}: expired")
        elif outcome in ("cancelled", "replaced") and "delay-settled-by" in headers:
            record.by = _number(headers["delay-settled-by"])
            _check_victim(shard, record, where)

    def _settle(self, shard: ShardHistory, offset: int, outcome: str) -> Placed:
        record = shard.placed.get(offset)
        if record is None:
            raise ViolationError(f"{shard.topic} offset {offset} is no record, but {outcome}")
        if record.outcome:
            raise ViolationError(
                f"{shard.topic} offset {offset} settled twice: {record.outcome}, then {outcome}"
            )
        record.outcome = outcome
        record.in_commit = self.commits
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        return record

    # --- copies --------------------------------------------------------------------------------

    def _take_copy(self, written: Written) -> None:
        shard = self.shards[written.topic]
        where = f"{written.topic} copy {written.offset}"
        fields = json.loads(dict(written.headers)["delay-copy"] or b"")
        source = base64.b64decode(fields["source"]).decode()
        if fields["settles"] == CONTINUES:
            placed = self._follow(written, fields, source, where)
        else:
            placed = self._copy(shard, written, fields, where)
        wish = placed.wish
        _require(source == placed.source(shard.topic), f"{where}: source {source}")
        identity = base64.b64decode(fields["id"]) if fields["id"] is not None else None
        _require(identity == wish.record_id, f"{where}: id {identity!r}")
        _require(fields["due"] == placed.due_ms, f"{where}: due {fields['due']}")
        _require(fields["attempt"] == placed.attempt, f"{where}: attempt {fields['attempt']}")
        waits = placed.attempt > 1 or placed.at_ms <= placed.due_ms or "turn" in fields
        waits = waits or (shard.topic, fields["settles"]) in self.held
        _require(waits, f"{where}: at {placed.at_ms}, due {placed.due_ms}")
        _require(written.key == wish.key, f"{where}: key")
        _require(written.value == wish.value, f"{where}: value")
        _require(tuple(written.headers[:-2]) == wish.own, f"{where}: own headers")
        shard.placed[written.offset] = placed

    def _copy(
        self, shard: ShardHistory, written: Written, fields: dict[str, Any], where: str
    ) -> Placed:
        """The record that a copy settles, as it goes on: rolled, parked, or at its first
        occurrence.
        """
        settled = self._settle(shard, fields["settles"], "copied")
        again = replace(
            settled,
            offset=written.offset,
            timestamp_ms=written.timestamp_ms,
            at_ms=fields["at"],
            outcome="",
        )
        settled.by = self._fired_by(shard, settled)
        if (
            settled.by >= 0
        ):  # H waits for a copy in flight: what H passes now, it has settled itself
            again.since = settled.by
        if fields["attempt"] == settled.attempt + 1:
            if settled.wish.cron and not settled.number:
                _begin(again, settled, fields["due"], where)
            again.attempt += 1
            again.was_fired = settled.was_fired or settled.by >= 0
            return again
        if settled.wish.cron and not settled.number:
            _begin(again, settled, fields["due"], where)
            return again
        if "turn" in fields:
            is_due = settled.was_fired or settled.due_ms <= written.sender_ms
            _require(is_due, f"{where}: over a limit before its time")
            return again
        if (shard.topic, settled.offset) in self.held:
            is_told = settled.was_fired or settled.by < 0 or settled.due_ms <= written.sender_ms
            _require(is_told, f"{where}: fired, and held as any")
            wait_ms = fields["at"] - written.sender_ms
            _require(0 < wait_ms <= 15 * HELD_MS, f"{where}: held for {wait_ms} ms")
            return again
        early = shard.contracts and shard.key_of(settled)[0] < settled.due_ms
        _require(bool(early), f"{where}: rolled at its due time")
        _require(not (settled.was_fired or settled.by >= 0), f"{where}: fired, and rolled")
        return again

    def _fired_by(self, shard: ShardHistory, record: Placed) -> int:
        by = shard.canceller_of(record)
        is_fired = by is not None and shard.placed[by].op == FIRE and by < self._heads[shard.topic]
        return by if by is not None and is_fired else -1

    def _follow(self, written: Written, fields: dict[str, Any], source: str, where: str) -> Placed:
        """The occurrence after one that the same transaction delivered before."""
        self.outcomes["recurred"] = self.outcomes.get("recurred", 0) + 1
        stem, _, number = source.partition("#")
        before, dues = self._to_follow.pop(f"{stem}#{int(number) - 1}", (None, set()))
        if before is None:
            raise ViolationError(f"{where}: {source} follows nothing")
        _require(fields["due"] in dues, f"{where}: due {fields['due']}, not {dues}")
        return Placed(
            written.offset,
            before.wish,
            written.timestamp_ms,
            before.origin,
            fields["due"],
            before.number + 1,
            since=max(before.since, before.by),
            at_ms=fields["at"],
        )

    def _read_checkpoint(self, shards: dict[str, Any]) -> None:
        for topic, said in shards.items():
            shard = self.shards[topic]
            key = (said["k"][0], said["k"][1])
            _require(key >= shard.key, f"{topic}: K went back from {shard.key} to {key}")
            _require(said["h"] >= shard.h, f"{topic}: H went back from {shard.h} to {said['h']}")
            _require(said["h"] <= self._last_stable(topic), f"{topic}: H is beyond what is stable")
            windows = [
                (c["from"], c["contract"]["roll_window_ms"], c["contract"]["roll_spread_ms"])
                for c in said["contracts"]
            ]
            for start, *_ in windows[len(shard.contracts) :]:
                _require(start >= shard.h, f"{topic}: a contract from {start}, below H {shard.h}")
            shard.key, shard.h, shard.contracts = key, said["h"], windows

    # --- promises ------------------------------------------------------------------------------

    def _check_settled(self, shard: ShardHistory) -> None:
        """Rule 1."""
        for record in shard.placed.values():
            passed = record.offset < shard.h
            if record.op in (SCHEDULE, COPY):
                by = shard.canceller_of(record)
                passed = passed and shard.key_of(record) <= shard.key
                passed = passed or (by is not None and by < shard.h)
            if passed != bool(record.outcome):
                raise ViolationError(
                    f"{shard.topic} offset {record.offset} ({record.op}) "
                    f"is {record.outcome or 'pending'} with K={shard.key} H={shard.h}"
                )

    def _check_controls(self, shard: ShardHistory) -> None:
        """Rule 8: a control says ``cancelled`` or ``fired`` iff it settled something."""
        now = [r for r in shard.placed.values() if r.in_commit == self.commits]
        hit = {record.by for record in now}
        perhaps: set[int] = set()
        for record in now:
            if record.outcome in ("dead", "expired"):  # by a fire, or before it came
                sure = shard.key_of(record) > shard.key
                (hit if sure else perhaps).add(shard.canceller_of(record) or -1)
        for control in now:
            if control.wish.op not in (CANCEL, FIRE):
                continue
            done = "cancelled" if control.wish.op == CANCEL else "fired"
            honest = {done if control.offset in hit else "not_pending"}
            if control.wish.op == FIRE and control.offset in perhaps:
                honest.add(done)
            if control.outcome not in honest:
                raise ViolationError(
                    f"{shard.topic} {control.wish.op} {control.offset} says {control.outcome}, "
                    f"was {honest}"
                )

    @property
    def is_drained(self) -> bool:
        """Whether nothing is pending."""
        return all(r.outcome for shard in self.shards.values() for r in shard.placed.values())

    def pending(self) -> list[tuple[str, int]]:
        """What is not settled."""
        return [
            (shard.topic, record.offset)
            for shard in self.shards.values()
            for record in shard.placed.values()
            if not record.outcome
        ]

    def check_chains(self) -> None:
        """Once drained: every user record, and every occurrence, has exactly one final outcome."""
        for shard in self.shards.values():
            final: dict[str, list[str]] = {}
            for record in shard.placed.values():
                ends = final.setdefault(record.source(shard.topic), [])
                if record.outcome in FINAL:
                    ends.append(record.outcome)
                elif record.wish.cron and not record.number:
                    ends.append("begun")
            for source, outcomes in final.items():
                _require(len(outcomes) == 1, f"{source} ended as {outcomes}")


def _first_dues(record: Placed) -> set[int | None]:
    """When the first occurrence of a cron schedule may be due, by whoever's calendar."""
    after_ms = record.wish.due_ms - 1 if record.wish.due_ms else record.timestamp_ms
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
    _require(record.op in (SCHEDULE, COPY), f"{where}: delivered a {record.op}")
    _require(
        not wish.recurs or record.number > 0, f"{where}: delivered before its first occurrence"
    )
    if record.by >= 0:
        _require(record.by == shard.canceller_of(record), f"{where}: fired by {record.by}")
        _require(shard.placed[record.by].op == FIRE, f"{where}: {record.by} is no fire")
    late_ms = written.sender_ms - record.due_ms
    in_time = late_ms >= 0 or record.by >= 0 or record.was_fired
    _require(in_time, f"{where}: delivered {-late_ms} ms early")
    if wish.expires_ms is not None:
        _require(written.sender_ms <= wish.expires_ms, f"{where}: delivered after it expired")
    expected: list[tuple[str, bytes | None]] = [
        *wish.own,
        ("delay-due-at", b"%d" % record.due_ms),
        ("delay-source", record.source(shard.topic).encode()),
        ("delay-settles", b"%d" % record.offset),
    ]
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


def _check_dead_letter(record: Placed, written: Written, where: str) -> None:
    wish, headers = record.wish, dict(written.headers)
    code = _text(headers["delay-error"])
    allowed = (wish.code,) if wish.op == INVALID else ("too-large", "target-unknown")
    if wish.cron and not record.number and (wish.cron == BAD or None in _first_dues(record)):
        allowed = ("cron-invalid",)
    _require(code in allowed, f"{where}: dead-lettered as {code}, not {allowed}")
    _require(written.key == wish.key, f"{where}: key {written.key!r}")
    _require(written.value == wish.value, f"{where}: value {written.value!r}")
    kept = [header for header in written.headers if header in wish.own]
    _require(kept == list(wish.own), f"{where}: own headers {written.headers}")
    if wish.op == SCHEDULE:
        again = all(header in written.headers for header in wish.recurrence(record.left))
        _require(again, f"{where}: recurrence in {written.headers}")


def _check_victim(shard: ShardHistory, record: Placed, where: str) -> None:
    expected = shard.canceller_of(record)
    _require(record.by == expected, f"{where}: settled by {record.by}, should be {expected}")
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
