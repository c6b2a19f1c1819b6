"""The verdict: what was acknowledged against what was found. Pure; reads no topic and no clock.

It shares no code with the service or its judge, and knows only the promises:
each record has exactly one outcome, is never early and byte for byte the same, and a cancel, a fire
or another schedule of the id that came in good time wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Final, Literal, TypeAlias

from tests.faults.facts import ADDED, Acked, Found, Op

PERCENT: Final = 100

FORWARD_MS: Final = 100
"""Longer than it takes to forward a record to the home of its id: "some 20 ms"."""

Outcome: TypeAlias = tuple[str, Literal["of", "by"], bytes]
"""What became of the record that was written there, or of another one by that record. Which other
is not asked: what a victim's outcome settles is the offset of a copy if it was rolled or forwarded.
"""
Outcomes: TypeAlias = Counter[Outcome]
Settled: TypeAlias = tuple[bytes, bytes]
"""Shard and offset that an output settles."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by which a history is judged.

    Args:
        delay_topic: where the history was written.
        dead_letter: the dead-letter topic.
        outcomes: the outcomes topic.
        grace_ms: a cancel appended so long before its victim's due time must win, unless the
            service was late meanwhile with records that had no canceller, by more than half of
            that: what it has not read it can't obey, where it was written or at the id's home.
            Shorter ones may win or lose, for the owner may be down in between, but never do both.
        early_ms: how early a record may be, where nodes' clocks are set apart on purpose.
        refused: uids of records that have to be dead-lettered.
        cut: uids of records that the log has lost: each may have an outcome or none.
    """

    delay_topic: str
    dead_letter: str
    outcomes: str
    grace_ms: int
    early_ms: int = 0
    refused: frozenset[bytes] = frozenset()
    cut: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Verdict:
    """Errors of a history by uid (outcomes: by name)."""

    records: int = 0
    lost: list[bytes] = field(default_factory=list)
    duplicated: list[bytes] = field(default_factory=list)
    early: list[bytes] = field(default_factory=list)
    altered: list[bytes] = field(default_factory=list)
    ineffective: list[bytes] = field(default_factory=list)
    dead_lettered: list[bytes] = field(default_factory=list)
    strangers: list[bytes] = field(default_factory=list)
    outcomes_wrong: list[bytes] = field(default_factory=list)
    copies_too_many: int = 0
    overtaken: int = 0
    lateness_ms: list[int] = field(default_factory=list)

    @property
    def wrong(self) -> dict[str, list[bytes]]:
        """Return the errors by kind; empty: there are none."""
        lists = {one.name: getattr(self, one.name) for one in fields(self)}
        kinds = {kind: value for kind, value in lists.items() if isinstance(value, list)}
        del kinds["lateness_ms"]
        return {kind: uids for kind, uids in kinds.items() if uids}

    @property
    def others(self) -> dict[str, list[bytes]]:
        """Return the errors of other kinds than lost, duplicated, early and altered."""
        told = {"lost", "duplicated", "early", "altered"}
        return {kind: uids for kind, uids in self.wrong.items() if kind not in told}

    def lateness(self, percent: float) -> int:
        """Return the nearest-rank percentile of lateness, in ms; 0 without records."""
        ranked = sorted(self.lateness_ms)
        if not ranked:
            return 0
        rank = -(-len(ranked) * percent // PERCENT)
        return ranked[max(int(rank), 1) - 1]


def check(acked: Sequence[Acked], found: Iterable[Found], rules: Rules) -> Verdict:
    """Compare a history with the records of target, dead-letter and outcome topics."""
    return _Check(acked, found, rules).verdict()


class _Check:
    def __init__(self, acked: Sequence[Acked], found: Iterable[Found], rules: Rules) -> None:
        self._rules = rules
        self._acked = {one.step.uid: one for one in acked}
        self._known = {uid for one in acked for uid in one.step.arrivals}
        self._canceller = {one.step.against: one for one in acked if one.step.against is not None}
        self._arrivals: dict[bytes, list[Found]] = {}
        self._outcomes: dict[bytes, Outcomes] = {}
        self._settled: Counter[Settled] = Counter()
        self._letters: list[bytes] = []
        self._verdict = Verdict()
        self._late_ms: dict[int, int] = {}
        """By second: the worst lateness of the plain records that were waited for then."""
        for one in found:
            self._sort(one)

    def _sort(self, one: Found) -> None:
        uid = one.uid or b"%s:%d:%d" % (one.topic.encode(), one.partition, one.offset)
        if one.topic == self._rules.outcomes:
            name = one.header("delay-id") or uid
            self._outcomes.setdefault(name, Counter())[_outcome(one)] += 1
            self._settled[_settled(one)] += 1
        elif one.topic == self._rules.dead_letter:
            self._letters.append(uid)
        elif uid not in self._known:
            self._verdict.strangers.append(uid)
        else:
            self._arrivals.setdefault(uid, []).append(one)

    def verdict(self) -> Verdict:
        for one in self._acked.values():
            for uid in one.step.arrivals:
                self._judge_record(one, uid)
        pairs = [(self._acked[uid], one) for uid, one in self._canceller.items()]
        # After all records, which say how late the service was.
        for victim, canceller in pairs:
            self._judge_pair(victim, canceller)
        self._judge_letters()
        names = {one.step.name or b"" for one in self._canceller.values()}
        self._verdict.outcomes_wrong += [name for name in self._outcomes if name not in names]
        if not self._rules.cut:  # a lost record and the one in its place have the same offset
            self._judge_settled()
        return self._verdict

    def _judge_record(self, record: Acked, uid: bytes) -> None:
        verdict = self._verdict
        verdict.records += 1
        arrivals = self._arrivals.get(uid, [])
        if arrivals:
            self._judge_arrivals(record, uid, arrivals)
        elif uid not in self._rules.cut and not self._was_stopped(record):
            verdict.lost.append(uid)

    def _judge_arrivals(self, record: Acked, uid: bytes, arrivals: Sequence[Found]) -> None:
        verdict = self._verdict
        due_ms = _number(arrivals[0], "delay-due-at") if record.step.times else record.due_ms
        seen_ms = min(one.seen_ms for one in arrivals)
        earliest_ms = due_ms - self._rules.early_ms
        fire = self._canceller.get(uid)
        is_fired = fire is not None and self._is_fired(fire)
        if is_fired and fire is not None:
            earliest_ms = min(earliest_ms, fire.appended_ms - self._rules.early_ms)
        else:
            verdict.lateness_ms.append(seen_ms - due_ms)
        if fire is None and record.step.against is None:
            for second in _seconds(due_ms, seen_ms):
                self._late_ms[second] = max(self._late_ms.get(second, 0), seen_ms - due_ms)
        if len(arrivals) > 1:
            verdict.duplicated.append(uid)
            verdict.copies_too_many += len(arrivals) - 1
        if any(min(one.written_ms, one.seen_ms) < earliest_ms for one in arrivals):
            verdict.early.append(uid)
        if any(self._is_altered(record, one, is_fired=is_fired) for one in arrivals):
            verdict.altered.append(uid)
        self._settled.update({_settled(one) for one in arrivals})

    def _is_altered(self, record: Acked, one: Found, *, is_fired: bool) -> bool:
        step = record.step
        own = tuple(header for header in one.headers if header[0] not in ADDED)
        source, _, number = (one.header("delay-source") or b"").partition(b"#")
        place = record.place(self._rules.delay_topic)
        expected = (step.target, step.key, step.value, step.own, place, step.name)
        if (one.topic, one.key, one.value, own, source, one.header("delay-id")) != expected:
            return True
        # A fired record that is parked comes without that header, at a later attempt.
        if is_fired != (one.header("delay-fired-by") is not None):
            return not is_fired or one.header("delay-attempt") is None
        due_ms = _number(one, "delay-due-at")
        if not step.times:
            return due_ms != record.due_ms
        # Occurrences that are missed are left out.
        periods, rest = divmod(due_ms - record.appended_ms, step.delay_ms)
        return rest != 0 or periods < int(number)

    def _judge_letters(self) -> None:
        """Each record that has to be refused has one letter, and no other record has any."""
        refused, letters = Counter(self._rules.refused), Counter(self._letters)
        self._verdict.lost += (refused - letters).elements()
        self._verdict.dead_lettered += (letters - refused).elements()

    def _judge_settled(self) -> None:
        """No two records settle one offset of a shard."""
        twice = [b"%s:%s" % place for place, count in self._settled.items() if count > 1]
        self._verdict.outcomes_wrong += twice

    # --- records of one id -----------------------------------------------------------------------

    def _was_stopped(self, record: Acked) -> bool:
        """Return whether an outcome accounts for a record that never came."""
        step = record.step
        canceller = self._canceller.get(step.uid, record)
        other = self._acked[step.against] if step.against is not None else canceller
        stop = self._stop(record, other, canceller.step.op)
        return other is not record and stop in self._outcomes.get(step.name or b"", Counter())

    def _stop(self, record: Acked, other: Acked, op: Op) -> Outcome | None:
        """Return the outcome of a record that the other of its pair kept from being delivered."""
        place = partial(Acked.place, topic=self._rules.delay_topic)
        stops: dict[Op, Outcome] = {
            "cancel": ("cancelled", "by", place(other)),
            "schedule": ("replaced", "by", place(other)),
            "absent": ("kept", "of", place(record)),
        }
        return stops.get(op)

    def _is_fired(self, fire: Acked) -> bool:
        place = fire.place(self._rules.delay_topic)
        return ("fired", "of", place) in self._outcomes.get(fire.step.name or b"", Counter())

    def _judge_pair(self, victim: Acked, canceller: Acked) -> None:
        """Each record of an id has the outcome that its place in their common order gives it.

        Records that are written to one partition keep their order. Of two partitions, the one that
        is forwarded first comes first, so a record that the service is slow to forward may be
        overtaken.
        """
        step = canceller.step
        came, other_came = (
            any(uid in self._arrivals for uid in one.step.arrivals) for one in (victim, canceller)
        )
        if self._outcomes.get(step.name or b"", Counter()) != self._expected(victim, canceller):
            self._verdict.outcomes_wrong.append(step.name or b"")
        has_effect = {
            "cancel": not came,
            "fire": self._is_fired(canceller),
            "schedule": not came,
            "absent": not other_came,
        }[step.op]
        overtaken = {"schedule": (True, False), "absent": (False, True)}
        is_overtaken = overtaken.get(step.op) == (came, other_came)
        ahead_ms = canceller.appended_ms - victim.appended_ms
        worst_ms = max(self._late_ms.values(), default=0)
        is_ordered = victim.step.partition == step.partition or ahead_ms > worst_ms + FORWARD_MS
        if is_ordered and (
            is_overtaken or (not has_effect and self._is_in_time(victim, canceller))
        ):
            self._verdict.ineffective.append(victim.step.uid)
        elif not is_ordered and not has_effect:
            self._verdict.overtaken += 1

    def _is_in_time(self, victim: Acked, canceller: Acked) -> bool:
        seconds = _seconds(canceller.appended_ms, victim.due_ms)
        late_ms = max((self._late_ms.get(second, 0) for second in seconds), default=0)
        # Twice: the two may wait where they were written, and again at their id's home.
        return canceller.appended_ms + max(self._rules.grace_ms, 2 * late_ms) <= victim.due_ms

    def _expected(self, victim: Acked, canceller: Acked) -> Outcomes:
        """Return the outcomes of a pair, by which of them were delivered."""
        op = canceller.step.op
        expected: Outcomes = Counter()
        for one, other in ((victim, canceller), (canceller, victim)):
            stop = self._stop(one, other, op)
            if stop and one.step.arrivals and one.step.uid not in self._arrivals:
                expected[stop] += 1
        place = canceller.place(self._rules.delay_topic)
        if op == "cancel":
            expected["cancelled" if expected else "not_pending", "of", place] += 1
        if op == "fire":
            expected["fired" if self._is_fired(canceller) else "not_pending", "of", place] += 1
        return expected


def _outcome(one: Found) -> Outcome:
    name = (one.header("delay-outcome") or b"?").decode()
    source = one.header("delay-source")
    if source is not None:
        return name, "of", source
    settler = one.header("delay-settled-by-source")
    if settler is None:  # it was written to the partition where it settled the record
        settler = b"%s:%s" % (one.header("delay-shard"), one.header("delay-settled-by") or b"?")
    return name, "by", settler


def _settled(one: Found) -> Settled:
    source = one.header("delay-source") or b"?"
    return one.header("delay-shard") or source.rpartition(b":")[0], one.header(
        "delay-settles"
    ) or b"?"


def _number(one: Found, header: str) -> int:
    text = one.header(header) or b""
    return int(text) if text.isdigit() else 0


def _seconds(from_ms: int, to_ms: int) -> range:
    return range(from_ms // 1_000, to_ms // 1_000 + 1)
