"""The audit's judge: what is wrong with one record, and what only looks like it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from connectors.spark.audit import row_judges
from connectors.spark.audit.group import grouped
from connectors.spark.audit.judge import judge
from connectors.spark.audit.row_judges import COUNT, ROWS_MAX, PassedTimes, RowJudge
from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.audit.verdicts import (
    CARRIED,
    CERTAIN,
    FOUND,
    IF_MARKED,
    IF_OTHER,
    IF_UNMARKED,
    SETTLED,
    UNJUDGED,
    UNLESS_MARKED,
    RecordVerdict,
)
from connectors.spark.common.frames import batch_of
from connectors.spark.ledger.facts import (
    COPIED,
    DELIVERED,
    LETTER,
    NEVER_MS,
    OUTCOME,
    PLAIN_SOURCE,
    SOURCE,
    OutputFacts,
    OutputRow,
    SourceFacts,
    SourceRow,
)
from connectors.spark.ledger.rows import SCHEMA, LedgerRow, pack
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import CANCEL, COPY, FIRE, INVALID
from delayservice.engine.cursor import Cursor
from tests.unit.spark_world import verdicts

EARLIER = Cursor((1_000, 5), 100)
LATER = Cursor((2_000, 5), 200)
CONTRACTS = Contracts([(0, Contract())])
SHARD = ShardRules("delay_topic_any:0", EARLIER, LATER, 10, 300, CONTRACTS)
RULES = Rules(
    shards={0: SHARD},
    topics={0: "letters", 1: "other", 2: "target"},
    partitions={0: 1, 1: 1, 2: 4},
    read=frozenset({0, 1, 2}),
    dead_letter=0,
    outcomes=1,
    delay_topics=frozenset(),
    complete_since_ms={},
    seen_ms={2: (0, 0, 0, 0)},
)
TARGET = 2
RECORD = SourceRow(0, 50, 900, 900, 400, 77, TARGET, -1)
DELIVERY = OutputRow(DELIVERED, 900, 900, 77, TARGET, 3, 0, -1)
PENDING = RECORD._replace(key_ms=1_500, due_ms=1_500)
LETTERED = DELIVERY._replace(role=LETTER, due_ms=900, topic=0, partition=0)


def found(
    source: SourceRow | None,
    *outputs: OutputRow,
    rules: Rules = RULES,
    counts: Counter[str] | None = None,
) -> list[RecordVerdict]:
    offset = 50 if source is None else source.offset
    group = grouped(0, offset, source, outputs)
    verdicts = judge(group, rules, Counter() if counts is None else counts)
    return [one for one in verdicts if one.verdict in (FOUND, UNJUDGED)]


def since(topic: int, at_ms: int) -> dict[int, tuple[int, ...]]:
    """Evidence of one topic is complete since then only."""
    return {topic: (at_ms,) * RULES.partitions[topic]}


def kinds(source: SourceRow | None, *outputs: OutputRow, rules: Rules = RULES) -> list[str]:
    return [one.kind for one in found(source, *outputs, rules=rules) if one.verdict == FOUND]


def of(**facts: object) -> SourceFacts:
    return SourceFacts(**facts)  # type: ignore[arg-type]  # a test's own


def told(output: OutputRow, **facts: object) -> OutputRow:
    return output._replace(facts=OutputFacts(**facts))  # type: ignore[arg-type]  # as above


def test_a_record_and_its_delivery_are_sound() -> None:
    assert found(RECORD, DELIVERY) == []


def test_only_what_the_earlier_checkpoint_has_settled_can_be_lost() -> None:
    assert kinds(RECORD) == ["lost"]
    assert kinds(PENDING) == []
    assert kinds(RECORD._replace(offset=100)) == []


def test_only_what_the_later_checkpoint_has_not_settled_is_not_checkpointed() -> None:
    output = DELIVERY._replace(due_ms=1_500, at_ms=1_500)
    assert kinds(PENDING, output) == []
    beyond = PENDING._replace(key_ms=2_001, due_ms=1_500)
    assert kinds(beyond, output) == ["not_checkpointed"]
    assert kinds(PENDING._replace(offset=200), output) == ["not_checkpointed"]
    young = replace(RULES, unsettled_since_ms=1_499)
    assert kinds(beyond, output, rules=young) == []


def test_a_record_with_an_id_depends_on_its_canceller() -> None:
    named = PENDING._replace(facts=of(record_id=b"a"))
    assert [one.when for one in found(named)] == [IF_MARKED]
    beyond = named._replace(key_ms=2_001)
    output = DELIVERY._replace(due_ms=1_500, at_ms=1_500)
    assert [one.when for one in found(beyond, output)] == [UNLESS_MARKED]
    fired = told(output._replace(at_ms=500), by=60)
    assert [(one.kind, one.when, one.claim) for one in found(beyond, fired)] == [
        ("not_checkpointed", UNLESS_MARKED, 60),
        ("wrong_outcome", IF_OTHER, 60),
    ]
    stranger = beyond._replace(key_ms=900, facts=of())
    assert [one.when for one in found(stranger, fired)] == [CERTAIN]


def test_the_settlement_is_the_soundest_and_the_others_are_duplicates() -> None:
    right = DELIVERY._replace(at_ms=2_500)
    wrong = DELIVERY._replace(topic=1, partition=0, place=9)
    for outputs in [(wrong, right), (right, wrong)]:
        (one,) = found(RECORD, *outputs)
        assert one.kind == "duplicated"
        assert one.output == wrong
        assert one.detail.endswith("it is also wrong_target")


def test_a_record_forwarded_by_a_consumer_is_no_duplicate() -> None:
    counts: Counter[str] = Counter()
    copied = DELIVERY._replace(topic=1, partition=0, content=5)
    assert found(RECORD, copied, DELIVERY, counts=counts) == []
    assert counts["mirrored"] == 1
    assert kinds(RECORD, copied) == ["wrong_target", "altered"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"at_ms": 899}, "early"),
        ({"content": 78}, "altered"),
        ({"due_ms": 901}, "altered"),
        ({"topic": 1, "partition": 0}, "wrong_target"),
        ({"key_hash": 5}, "wrong_target"),
        ({"facts": OutputFacts(origin="delay_topic_any:0:51")}, "altered"),
    ],
)
def test_a_delivery_that_differs_is_found(change: dict[str, Any], kind: str) -> None:
    assert kinds(RECORD, DELIVERY._replace(**change)) == [kind]


def test_a_fired_record_is_not_early() -> None:
    named = RECORD._replace(facts=of(record_id=b"a"))
    early = DELIVERY._replace(at_ms=500)
    assert kinds(named, told(early, by=60)) == ["wrong_outcome"]  # if another cancelled it
    parked = of(kind=COPY, record_id=b"a", attempt=2, origin="delay_topic_any:0:20", base=31)
    copied = told(early, origin="delay_topic_any:0:20")
    assert kinds(named._replace(facts=parked), copied) == []  # maybe fired by offset 30
    never = structs.replace(parked, base=21)
    assert kinds(named._replace(facts=never), copied) == ["early"]
    assert kinds(RECORD._replace(facts=of(kind=COPY, attempt=2)), early) == ["early"]


def test_lateness_begins_when_the_record_was_there() -> None:
    strict = replace(RULES, late_ms=100)
    late = DELIVERY._replace(at_ms=1_001)
    assert kinds(RECORD, late, rules=strict) == ["late"]
    assert kinds(RECORD._replace(written_ms=950), late, rules=strict) == []
    assert kinds(RECORD, late) == []


def test_a_partition_that_was_right_before_partitions_were_added_is_right() -> None:
    keyed = DELIVERY._replace(key_hash=5)
    grown = replace(RULES, seen_ms={2: (0, 0, 5_000, 6_000)})
    assert kinds(RECORD, keyed._replace(partition=5 % 4), rules=grown) == []
    assert kinds(RECORD, keyed._replace(partition=5 % 3), rules=grown) == []
    assert kinds(RECORD, keyed._replace(partition=0), rules=grown) == ["wrong_target"]
    assert kinds(RECORD, keyed._replace(partition=5 % 3)) == ["wrong_target"]


def test_a_record_is_not_lost_where_its_outputs_may_have_been_deleted() -> None:
    counts: Counter[str] = Counter()
    cut = replace(RULES, complete_since_ms=since(TARGET, 901))
    (one,) = found(RECORD, rules=cut, counts=counts)
    assert (one.kind, one.verdict) == ("evidence_deleted", UNJUDGED)
    assert counts["not_checkable"] == 1
    before = replace(cut, shards={0: replace(SHARD, judged_from=51)})
    assert found(RECORD, rules=before) == []  # outside of the range that the verdict is for
    assert kinds(RECORD, rules=replace(RULES, complete_since_ms=since(TARGET, 900))) == []
    assert kinds(RECORD, rules=replace(RULES, complete_since_ms=since(TARGET, 899))) == ["lost"]
    assert kinds(RECORD, rules=replace(RULES, read=frozenset({0}))) == []
    letters = replace(RULES, complete_since_ms=since(0, NEVER_MS))
    assert kinds(RECORD, rules=letters) == []


def test_a_cancellable_record_is_lost_only_if_its_outcomes_are_kept() -> None:
    named = RECORD._replace(facts=of(record_id=b"a"))  # written at 400, due at 900
    assert [one.when for one in found(named)] == [CERTAIN]
    cut = replace(RULES, complete_since_ms=since(0, 401))
    unjudged, lost = found(named, rules=cut)
    assert (unjudged.verdict, unjudged.when) == (UNJUDGED, IF_MARKED)
    assert (lost.kind, lost.when, lost.since_ms) == ("lost", IF_UNMARKED, 900)
    counts: Counter[str] = Counter()
    pending = named._replace(key_ms=1_500, due_ms=1_500)
    (one,) = found(pending, rules=cut, counts=counts)
    assert (one.verdict, one.when) == (UNJUDGED, IF_MARKED)
    assert counts["pending"] == 1
    gone = replace(RULES, complete_since_ms=since(0, 901))
    (one,) = found(named, rules=gone, counts=counts)
    assert (one.verdict, one.when) == (UNJUDGED, CERTAIN)
    assert counts["not_checkable"] == 1
    assert kinds(RECORD, rules=cut) == ["lost"]  # nobody can cancel it


def test_a_copy_whose_canceller_may_have_expired_is_not_lost() -> None:
    copy = RECORD._replace(facts=of(kind=COPY, record_id=b"a", base=9))
    cut = replace(
        RULES,
        shards={0: replace(SHARD, start=10)},
        complete_since_ms=since(0, 401),
    )
    assert decided(copy) == {("lost", FOUND)}
    assert decided(copy, rules=cut) == {("evidence_deleted", UNJUDGED)}
    known = copy._replace(facts=of(kind=COPY, record_id=b"a", base=10))
    assert decided(known, rules=cut) == {("lost", FOUND)}


def test_a_rolled_record_is_settled_from_its_key_time_on() -> None:
    rolled = RECORD._replace(due_ms=5_000)  # its key is 900
    assert [one.since_ms for one in found(rolled)] == [900]
    cut = replace(RULES, complete_since_ms=since(0, 901))
    assert [one.verdict for one in found(rolled, rules=cut)] == [UNJUDGED]


def test_outputs_of_a_topic_that_was_deleted_are_not_those_of_the_new_one() -> None:
    anew = replace(RULES, shards={0: replace(SHARD, born_ms=901)})
    young = DELIVERY._replace(at_ms=901, place=9)
    counts: Counter[str] = Counter()
    assert found(RECORD, DELIVERY, young, rules=anew, counts=counts) == []
    assert kinds(None, DELIVERY, rules=anew) == []
    assert kinds(None, young, rules=anew) == ["unknown_source"]
    assert counts["source_expired"] == 1
    assert kinds(RECORD, DELIVERY, rules=anew) == ["lost"]


def test_outputs_of_records_that_are_not_there() -> None:
    assert kinds(None, DELIVERY) == ["unknown_source"]
    expired = replace(RULES, shards={0: replace(SHARD, start=51)})
    assert kinds(None, DELIVERY, rules=expired) == []
    beyond = replace(SHARD, end=50)
    assert kinds(None, DELIVERY, rules=replace(RULES, shards={0: beyond})) == ["unknown_source"]
    hidden = replace(RULES, shards={0: replace(beyond, is_open=True)})
    assert kinds(None, DELIVERY, rules=hidden) == []


REFUSED = RECORD._replace(key_ms=0, facts=of(kind=INVALID, code="time-missing"))


@pytest.mark.parametrize(
    ("source", "output", "kind"),
    [
        (REFUSED, told(LETTERED, code="time-missing", whole_hash=77), None),
        (REFUSED, told(LETTERED, code="time-missing", whole_hash=78), "altered"),
        (REFUSED, told(LETTERED, code="time-missing", is_bare=True, says_bare=True), None),
        (REFUSED, told(LETTERED, code="time-missing", is_bare=True), "altered"),
        (REFUSED, told(LETTERED, code="time-past", whole_hash=77), "wrong_outcome"),
        (REFUSED, told(LETTERED), "dead_letter_missing_code"),
        (REFUSED, DELIVERY, "wrong_outcome"),
        (RECORD, told(LETTERED, code="target-unknown", target="target"), None),
        (RECORD, told(LETTERED._replace(content=1), code="target-unknown"), "altered"),
        (RECORD, told(LETTERED, code="time-missing"), "wrong_outcome"),
        (RECORD, told(LETTERED, code="target-denied", target="target"), None),
        (
            RECORD._replace(facts=of(kind=COPY)),
            told(LETTERED, code="target-denied", target="target"),
            None,
        ),
        (RECORD, told(LETTERED._replace(content=1), code="target-denied"), "altered"),
        (
            RECORD._replace(facts=of(kind=CANCEL, record_id=b"a")),
            told(LETTERED, code="target-denied"),
            "wrong_outcome",
        ),
        (REFUSED, told(LETTERED, code="target-denied", whole_hash=77), "wrong_outcome"),
        (
            RECORD._replace(key_ms=0, facts=of(kind=CANCEL, record_id=b"a")),
            told(LETTERED, code="target-unknown"),
            "wrong_outcome",
        ),
    ],
)
def test_dead_letters(source: SourceRow, output: OutputRow, kind: str | None) -> None:
    assert kinds(source, output) == ([] if kind is None else [kind])


@pytest.mark.parametrize(
    ("facts", "name", "kind"),
    [
        ({"kind": CANCEL, "record_id": b"a"}, "cancelled", None),
        ({"kind": CANCEL, "record_id": b"a"}, "not_pending", None),
        ({"kind": CANCEL, "record_id": b"a"}, "fired", "wrong_outcome"),
        ({"kind": FIRE, "record_id": b"a"}, "fired", None),
        ({"kind": FIRE, "record_id": b"a"}, "cancelled", "wrong_outcome"),
        ({"expires_ms": 899}, "expired", None),
        ({"expires_ms": 901}, "expired", "wrong_outcome"),
        ({}, "expired", "wrong_outcome"),
        ({}, "cancelled", "wrong_outcome"),
        ({}, "", "wrong_outcome"),
    ],
)
def test_outcomes(facts: dict[str, object], name: str, kind: str | None) -> None:
    output = told(DELIVERY._replace(role=OUTCOME, due_ms=-1), outcome=name)
    assert kinds(RECORD._replace(facts=of(**facts)), output) == ([] if kind is None else [kind])


def test_a_copy_says_what_its_record_says() -> None:
    copy = told(DELIVERY._replace(role=COPIED), target="target", origin="delay_topic_any:0:50")
    assert kinds(RECORD, copy) == []
    assert kinds(RECORD, copy._replace(content=1)) == ["altered"]
    assert kinds(RECORD, told(copy, target="other")) == ["wrong_target"]
    unarmed = RECORD._replace(due_ms=400, facts=of(is_armed=False))
    numbered = told(copy, target="target", origin="delay_topic_any:0:50#1")
    assert kinds(unarmed, numbered) == []


def test_a_believed_copy_is_forged_if_the_service_says_so() -> None:
    copy = PENDING._replace(facts=of(kind=COPY, is_verified=False))
    letter = told(LETTERED, code="copy-forged", whole_hash=5)
    assert kinds(copy, letter) == []
    verified = copy._replace(key_ms=900, facts=of(kind=COPY))
    assert kinds(verified, letter) == ["wrong_outcome"]


# --- what becomes of a record --------------------------------------------------------------------


def fates(
    source: SourceRow | None, *outputs: OutputRow, rules: Rules = RULES
) -> list[tuple[int, int]]:
    """Verdict and condition of what is kept for the next cut."""
    group = grouped(0, 50 if source is None else source.offset, source, outputs)
    verdicts = judge(replace(group, rows=[LedgerRow(0, 50, SOURCE)]), rules, Counter())
    return [(one.verdict, one.when) for one in verdicts if one.verdict in (CARRIED, SETTLED)]


def test_an_unsettled_record_is_carried() -> None:
    assert fates(PENDING) == [(CARRIED, CERTAIN)]
    assert fates(RECORD) == [(SETTLED, CERTAIN)]  # lost
    assert fates(RECORD, DELIVERY) == [(SETTLED, CERTAIN)]
    named = PENDING._replace(facts=of(record_id=b"a"))
    assert fates(named) == [(CARRIED, IF_UNMARKED), (SETTLED, IF_MARKED)]
    hidden = replace(RULES, open_places=frozenset({(TARGET, n) for n in range(4)}))
    assert fates(RECORD, rules=hidden) == [(CARRIED, CERTAIN)]
    deleted = replace(RULES, complete_since_ms=since(TARGET, 901))
    assert fates(RECORD, rules=deleted) == [(SETTLED, CERTAIN)]


def test_outputs_ahead_of_checkpoint_or_source_are_carried() -> None:
    output = DELIVERY._replace(due_ms=2_500, at_ms=2_500)
    ahead = PENDING._replace(key_ms=2_500, due_ms=2_500)
    assert fates(ahead, output) == [(SETTLED, CERTAIN)]
    assert fates(ahead, output, rules=replace(RULES, unsettled_since_ms=2_499)) == [
        (CARRIED, CERTAIN)
    ]
    copied = told(DELIVERY._replace(role=COPIED), base=-1)
    short = replace(RULES, shards={0: replace(SHARD, end=50)})
    assert fates(None, copied, rules=short) == [(CARRIED, CERTAIN)]
    assert fates(None, copied) == []


# --- by id ---------------------------------------------------------------------------------------


def decided(source: SourceRow, *outputs: OutputRow, rules: Rules = RULES) -> set[tuple[str, int]]:
    """Findings of one record that bears an id, once its canceller was looked for."""
    rows = [row(source), *[delivered(source.offset, one) for one in outputs]]
    return {
        (one["kind"], one["verdict"])
        for one in verdicts([batch_of(rows, SCHEMA)], rules)[0]
        if one["verdict"] in (FOUND, UNJUDGED)
    }


# --- many at once --------------------------------------------------------------------------------


def row(source: SourceRow) -> LedgerRow:
    s = source
    return LedgerRow(
        0,
        s.offset,
        SOURCE,
        key_ms=s.key_ms,
        due_ms=s.due_ms,
        at_ms=s.written_ms,
        content=s.content,
        topic=s.topic,
        more=None if s.facts is PLAIN_SOURCE else pack(s.facts),
    )


def delivered(offset: int, output: OutputRow) -> LedgerRow:
    o = output
    return LedgerRow(
        0,
        offset,
        o.role,
        due_ms=o.due_ms,
        at_ms=o.at_ms,
        content=o.content,
        topic=o.topic,
        partition=o.partition,
        place=o.place,
    )


def judged(rows: list[LedgerRow], *cuts: int) -> list[dict[str, Any]]:
    """Verdicts on rows of records without ids, in batches that end at ``cuts``."""
    told = [(*row, row.offset) for row in rows]
    schema = SCHEMA.append(pa.field("family", pa.int64()))
    batches = [batch_of(told[a:b], schema) for a, b in pairwise([0, *cuts, len(told)])]
    judge_of = RowJudge(RULES, PassedTimes())
    return [one for batch in judge_of.judge(batches) for one in batch.to_pylist()]


def test_rows_of_one_record_meet_across_batches() -> None:
    rows = [
        line
        for offset in range(20, 60)
        for line in (row(RECORD._replace(offset=offset)), delivered(offset, DELIVERY))
    ]
    for cut in (1, 2, 39, 79):
        made = judged(rows, cut)
        counts = {one["kind"]: one["number"] for one in made if one["verdict"] == COUNT}
        assert not [one for one in made if one["verdict"] in (FOUND, UNJUDGED)]
        assert (counts["sources"], counts["delivered"], counts["outputs"]) == (40, 40, 40)


def test_a_flood_of_outputs_of_one_record_is_one_more_finding() -> None:
    flood = [delivered(50, DELIVERY._replace(place=n)) for n in range(ROWS_MAX)]
    found = [one for one in judged([row(RECORD), *flood, *flood]) if one["verdict"] == FOUND]
    kinds = Counter(one["kind"] for one in found)
    assert kinds == {"duplicated": ROWS_MAX - 2, "flooded": 1}
    assert (
        found[-1]["detail"]
        == f"{2 * ROWS_MAX + 1} rows name it, and the first {ROWS_MAX} were judged"
    )


def test_an_id_of_too_many_records_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_judges, "ID_RECORDS_MAX", 3)
    named = PENDING._replace(facts=of(record_id=b"a"))
    rows = [(*row(named._replace(offset=offset)), 7) for offset in range(20, 24)]
    batch = batch_of(rows, SCHEMA.append(pa.field("family", pa.int64())))
    for keeps in (False, True):
        judge_of = RowJudge(RULES, PassedTimes(), keeps=keeps)
        made = [one for b in judge_of.judge([batch]) for one in b.to_pylist()]
        told = [(one["kind"], one["offset"]) for one in made if one["verdict"] == UNJUDGED]
        assert told == [("id_flooded", 20)]
        assert not [one for one in made if one["verdict"] == FOUND]
        kept = Counter(one["verdict"] for one in made if one["verdict"] not in (COUNT, UNJUDGED))
        assert kept == ({SETTLED: 4} if keeps else {})
