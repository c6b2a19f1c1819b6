import json

from connectors.kafka.audits import AuditSummaries, AuditSummary, AuditWatcher
from delayservice.metrics.counts import AuditFacts, ReconcileFacts

ONE, OTHER = (("delay_topic_any", 0, 0, 8_192),), (("delay_topic_any", 1, 0, 8_192),)


def together(*summaries: AuditSummary) -> AuditFacts:
    heard = AuditSummaries()
    for summary in summaries:
        heard.add(summary)
    return heard.together()


def test_a_whole_audit_replaces_what_was_found_before() -> None:
    before, of_range = AuditSummary(1, 10, {"lost": 2}), AuditSummary(2, 3, {"lost": 1}, ONE)
    after = AuditSummary(3, 20, {})
    assert together(before, of_range, after) == AuditFacts(3, 20, {})


def test_audits_of_ranges_add_to_it() -> None:
    before = AuditSummary(1, 10, {"lost": 2})
    of_one = AuditSummary(2, 3, {"lost": 1, "early": 4}, ONE)
    of_other = AuditSummary(3, 3, {"lost": 5}, OTHER)
    assert together(before, of_one, of_other) == AuditFacts(3, 10, {"lost": 8, "early": 4})


def test_a_range_that_is_audited_again_counts_once() -> None:
    first = AuditSummary(1, 3, {"lost": 1}, ONE)
    again = AuditSummary(2, 3, {"lost": 1}, ONE)
    mended = AuditSummary(3, 3, {}, ONE)
    assert together(first, again) == AuditFacts(2, 0, {"lost": 1})
    assert together(first, again, mended) == AuditFacts(3, 0, {})


def test_audits_and_comparisons_of_copies_are_heard_from_one_topic() -> None:
    watcher = AuditWatcher("delay_audit")
    audit = {"kind": "summary", "at_ms": 1, "records": 9, "findings": {"lost": 1}}
    compared = {"kind": "reconcile", "at_ms": 2, "findings": {}, "records": 4, "pending": 5}
    repairs = {"repairs": {"made": 3, "stopped": True, "left": {}, "failed": 0}}
    for said in (
        {**compared, **repairs},
        audit,
        {"kind": "copy_finding", "finding": "missing", "offset": 7},
        {**compared, "at_ms": "soon"},
    ):
        watcher.take(None, json.dumps(said).encode())
    assert watcher.newest == AuditFacts(1, 9, {"lost": 1})
    assert watcher.copies == ReconcileFacts(2, {}, 4, 5, 3, is_stopped=True)
    watcher.take(None, json.dumps({**compared, "at_ms": 3}).encode())
    assert watcher.copies == ReconcileFacts(3, {}, 4, 5)
