"""Judges every transaction by the design alone: it reads topics, and knows nothing of the code.

Its own reading of rules 1, 2, 8, 10 and 12, of the output headers (design section 3) and of the
checkpoint's documented JSON. A record's canceller is the next user record of its id:
rules 12 and 13 exist so that this holds for every copy too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from tests.simulation.history import (
    CANCEL,
    COPY,
    INVALID,
    SCHEDULE,
    Placed,
    ShardHistory,
    ViolationError,
    Wish,
)
from tests.simulation.sim_log import Transaction, Written

FINAL = ("delivered", "dead", "cancelled", "replaced", "expired", "not_pending")


class Oracle:
    """All shards of the slice."""

    def __init__(self, topics: tuple[str, ...], last_stable: Callable[[str], int]) -> None:
        self.shards = {topic: ShardHistory(topic) for topic in topics}
        self.commits = 0
        self.outcomes: dict[str, int] = {}
        self._last_stable = last_stable

    # --- what users did ------------------------------------------------------------------------

    def user_wrote(self, written: Written, wish: Wish) -> None:
        """A user's record is committed."""
        self.shards[written.topic].placed[written.offset] = Placed(
            written.offset, wish, written.timestamp_ms, written.offset
        )

    # --- what the service did ------------------------------------------------------------------

    def service_committed(self, transaction: Transaction) -> None:
        """Judge one transaction of the service."""
        self.commits += 1
        for written in transaction.records:
            if written.topic != "delay_checkpoint":
                self._settled_by(written)
        checkpoints = [w for w in transaction.records if w.topic == "delay_checkpoint"]
        if len(checkpoints) != 1:
            raise ViolationError(f"a transaction with {len(checkpoints)} checkpoints")
        self._read_checkpoint(checkpoints[0])
        for shard in self.shards.values():
            self._check_settled(shard)
            self._check_cancels(shard)

    def _settled_by(self, written: Written) -> None:
        headers = dict(written.headers)
        if written.topic in self.shards:
            self._take_copy(written)
            return
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
            _check_delivery(shard, record, written, where)
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
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        return record

    def _take_copy(self, written: Written) -> None:
        shard = self.shards[written.topic]
        text = dict(written.headers)["delay-copy"]
        fields = json.loads(text or b"")
        settled = self._settle(shard, fields["settles"], "copied")
        where = f"{written.topic} copy {written.offset}"
        source = base64.b64decode(fields["source"]).decode()
        _require(source == f"{written.topic}:0:{settled.origin}", f"{where}: source {source}")
        _require(fields["due"] == settled.wish.due_ms, f"{where}: due {fields['due']}")
        identity = base64.b64decode(fields["id"]) if fields["id"] is not None else None
        _require(identity == settled.wish.record_id, f"{where}: id {identity!r}")
        parked = fields["attempt"] == settled.attempt + 1
        early = shard.contracts and shard.key_of(settled)[0] < settled.wish.due_ms
        _require(parked or bool(early), f"{where}: rolled at its due time")
        _require(written.key == settled.wish.key, f"{where}: key")
        _require(written.value == settled.wish.value, f"{where}: value")
        _require(tuple(written.headers[:-2]) == settled.wish.own, f"{where}: own headers")
        shard.placed[written.offset] = Placed(
            written.offset,
            settled.wish,
            written.timestamp_ms,
            settled.origin,
            at_ms=fields["at"],
            attempt=fields["attempt"],
        )

    def _read_checkpoint(self, written: Written) -> None:
        shards = json.loads(written.value or b"")["shards"]
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

    def _check_cancels(self, shard: ShardHistory) -> None:
        """Rule 8: ``cancelled`` iff it prevented a delivery."""
        victims = {record.by for record in shard.placed.values() if record.by >= 0}
        for record in shard.placed.values():
            if record.wish.op != CANCEL or not record.outcome:
                continue
            honest = "cancelled" if record.offset in victims else "not_pending"
            if record.outcome != honest:
                raise ViolationError(
                    f"{shard.topic} cancel {record.offset} says {record.outcome}, was {honest}"
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
        """Once drained: every user record has exactly one final outcome."""
        for shard in self.shards.values():
            final: dict[int, list[str]] = {o: [] for o, r in shard.placed.items() if r.origin == o}
            for record in shard.placed.values():
                if record.outcome in FINAL:
                    final[record.origin].append(record.outcome)
            for origin, outcomes in final.items():
                _require(len(outcomes) == 1, f"{shard.topic} offset {origin} ended as {outcomes}")


def _check_delivery(shard: ShardHistory, record: Placed, written: Written, where: str) -> None:
    wish = record.wish
    _require(record.op in (SCHEDULE, COPY), f"{where}: delivered a {record.op}")
    late_ms = written.sender_ms - wish.due_ms
    _require(late_ms >= 0, f"{where}: delivered {-late_ms} ms early")
    if wish.expires_ms is not None:
        _require(written.sender_ms <= wish.expires_ms, f"{where}: delivered after it expired")
    expected: list[tuple[str, bytes | None]] = [
        *wish.own,
        ("delay-due-at", b"%d" % wish.due_ms),
        ("delay-source", f"{shard.topic}:0:{record.origin}".encode()),
        ("delay-settles", b"%d" % record.offset),
    ]
    if wish.record_id is not None:
        expected.append(("delay-id", wish.record_id))
    if record.attempt > 1:
        expected.append(("delay-attempt", b"%d" % record.attempt))
    _require(written.topic == wish.target, f"{where}: went to {written.topic}")
    _require(written.key == wish.key, f"{where}: key {written.key!r}")
    _require(written.value == wish.value, f"{where}: value {written.value!r}")
    _require(written.headers == expected, f"{where}: headers {written.headers}")


def _check_dead_letter(record: Placed, written: Written, where: str) -> None:
    wish, headers = record.wish, dict(written.headers)
    code = _text(headers["delay-error"])
    allowed = (wish.code,) if wish.op == INVALID else ("too-large", "target-unknown")
    _require(code in allowed, f"{where}: dead-lettered as {code}, not {allowed}")
    _require(written.key == wish.key, f"{where}: key {written.key!r}")
    _require(written.value == wish.value, f"{where}: value {written.value!r}")
    kept = [header for header in written.headers if header in wish.own]
    _require(kept == list(wish.own), f"{where}: own headers {written.headers}")


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
