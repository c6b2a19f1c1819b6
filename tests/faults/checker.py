"""The verdict: what was acknowledged against what was found. Pure; reads no topic and no clock.

It shares no code with the service or its judge, and knows only the promises:
each record has exactly one outcome, is never early and byte for byte the same, and a cancel that
came in good time wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, TypeAlias

from tests.faults.facts import ADDED, Acked, Found

PERCENT: Final = 100

Outcomes: TypeAlias = Counter[tuple[str, bool]]
"""``(outcome, whether it settles the canceller itself)`` of one name, counted."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules by which a history is judged.

    Args:
        delay_topic: where the history was written.
        dead_letter: the dead-letter topic.
        outcomes: the outcomes topic.
        grace_ms: a cancel appended so long before its victim's due time must win, unless the
            service was later than that with records that had no canceller: what it has not read
            it can't obey. Shorter ones may win or lose, for the owner may be down in between, but
            never do both.
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
    cancelled_but_delivered: list[bytes] = field(default_factory=list)
    dead_lettered: list[bytes] = field(default_factory=list)
    strangers: list[bytes] = field(default_factory=list)
    outcomes_wrong: list[bytes] = field(default_factory=list)
    copies_too_many: int = 0
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
        self._canceller = {one.step.against: one for one in acked if one.step.against is not None}
        self._arrivals: dict[bytes, list[Found]] = {}
        self._outcomes: dict[bytes, list[Found]] = {}
        self._letters: list[bytes] = []
        self._verdict = Verdict()
        self._grace_ms = rules.grace_ms
        for one in found:
            self._sort(one)

    def _sort(self, one: Found) -> None:
        uid = one.uid or b"%s:%d:%d" % (one.topic.encode(), one.partition, one.offset)
        if one.topic == self._rules.outcomes:
            self._outcomes.setdefault(one.header("delay-id") or uid, []).append(one)
        elif one.topic == self._rules.dead_letter:
            self._letters.append(uid)
        elif uid not in self._acked:
            self._verdict.strangers.append(uid)
        else:
            self._arrivals.setdefault(uid, []).append(one)

    def verdict(self) -> Verdict:
        for one in self._acked.values():
            if one.step.delay_ms is None:
                self._judge_cancel(one)
            else:
                self._judge_record(one)
        self._judge_victims()
        self._judge_letters()
        self._judge_outcomes()
        return self._verdict

    def _judge_cancel(self, cancel: Acked) -> None:
        """A cancel is never delivered itself."""
        if cancel.step.uid in self._arrivals:
            self._verdict.strangers.append(cancel.step.uid)

    def _judge_record(self, record: Acked) -> None:
        verdict, uid = self._verdict, record.step.uid
        verdict.records += 1
        arrivals = self._arrivals.get(uid, [])
        if arrivals:
            self._judge_arrivals(record, arrivals)
        elif uid not in self._rules.cut and not self._was_stopped(record):
            verdict.lost.append(uid)

    def _judge_victims(self) -> None:
        """After all records, which say how late the service was."""
        for uid, canceller in self._canceller.items():
            victim = self._acked.get(uid)
            if victim is None or uid not in self._arrivals:
                continue
            if canceller.appended_ms + self._grace_ms <= victim.due_ms:
                self._verdict.cancelled_but_delivered.append(uid)

    def _judge_arrivals(self, record: Acked, arrivals: Sequence[Found]) -> None:
        verdict, uid, due_ms = self._verdict, record.step.uid, record.due_ms
        late_ms = min(one.seen_ms for one in arrivals) - due_ms
        verdict.lateness_ms.append(late_ms)
        if uid not in self._canceller:
            self._grace_ms = max(self._grace_ms, late_ms)
        if len(arrivals) > 1:
            verdict.duplicated.append(uid)
            verdict.copies_too_many += len(arrivals) - 1
        earliest_ms = due_ms - self._rules.early_ms
        if any(min(one.written_ms, one.seen_ms) < earliest_ms for one in arrivals):
            verdict.early.append(uid)
        if any(self._is_altered(record, one) for one in arrivals):
            verdict.altered.append(uid)

    def _is_altered(self, record: Acked, one: Found) -> bool:
        step = record.step
        own = tuple(header for header in one.headers if header[0] not in ADDED)
        source = f"{self._rules.delay_topic}:{step.partition}:{record.offset}".encode()
        expected = (step.target, step.key, step.value, step.own, source, step.name)
        named = (one.header("delay-source"), one.header("delay-id"))
        return (one.topic, one.key, one.value, own, *named) != expected or one.header(
            "delay-due-at"
        ) != b"%d" % record.due_ms

    def _judge_letters(self) -> None:
        """Each record that has to be refused has one letter, and no other record has any."""
        refused, letters = Counter(self._rules.refused), Counter(self._letters)
        self._verdict.lost += (refused - letters).elements()
        self._verdict.dead_lettered += (letters - refused).elements()

    def _was_stopped(self, victim: Acked) -> bool:
        """Return whether an outcome accounts for a record that never came."""
        canceller = self._canceller.get(victim.step.uid)
        if canceller is None:
            return False
        fate = "cancelled" if canceller.step.delay_ms is None else "replaced"
        return self._counted(canceller)[fate, False] > 0

    def _counted(self, canceller: Acked) -> Outcomes:
        """Outcomes under the canceller's name. What the victim's settles is not asked: the victim
        may have been rolled, and then it is the offset of a copy.
        """
        settles = b"%d" % canceller.offset
        return Counter(
            ((one.header("delay-outcome") or b"?").decode(), one.header("delay-settles") == settles)
            for one in self._outcomes.get(canceller.step.name or b"", [])
        )

    def _judge_outcomes(self) -> None:
        """Each cancel has its own outcome and its victim's, a replacement its victim's only."""
        known: set[bytes] = set()
        for uid, canceller in self._canceller.items():
            name = canceller.step.name or b""
            known.add(name)
            is_delivered = uid in self._arrivals
            if self._counted(canceller) != _expected(canceller, is_delivered=is_delivered):
                self._verdict.outcomes_wrong.append(name)
        self._verdict.outcomes_wrong += [name for name in self._outcomes if name not in known]


def _expected(canceller: Acked, *, is_delivered: bool) -> Mapping[tuple[str, bool], int]:
    if canceller.step.delay_ms is not None:
        return Counter() if is_delivered else Counter({("replaced", False): 1})
    if is_delivered:
        return Counter({("not_pending", True): 1})
    return Counter({("cancelled", False): 1, ("cancelled", True): 1})
