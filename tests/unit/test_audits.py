import json
from typing import Any

from connectors.kafka.audits import AuditWatcher
from delayservice.metrics.counts import AuditFacts, ReconcileFacts

ONE, OTHER = ["delay_topic_any", 0, 0, 8_192], ["delay_topic_any", 1, 0, 8_192]


def hears(*told: dict[str, Any]) -> AuditWatcher:
    watcher = AuditWatcher("delay_audit")
    for said in told:
        watcher.take(None, json.dumps(said).encode())
    return watcher


def audit(at_ms: int, records: int, findings: dict[str, int], *ranges: list[Any]) -> dict[str, Any]:
    facts = {"at_ms": at_ms, "records": records, "findings": findings}
    return {"kind": "summary", **facts, "ranges": ranges}


def test_a_whole_audit_replaces_what_was_found_before() -> None:
    before, of_range = audit(1, 10, {"lost": 2}), audit(2, 3, {"lost": 1}, ONE)
    assert hears(before, of_range, audit(3, 20, {})).newest == AuditFacts(3, 20, {})


def test_audits_of_ranges_add_to_it_and_each_range_counts_once() -> None:
    parts = [audit(1, 10, {"lost": 2}), audit(2, 3, {"lost": 1, "early": 4}, ONE)]
    parts.append(audit(3, 3, {"lost": 5}, OTHER))
    assert hears(*parts).newest == AuditFacts(3, 10, {"lost": 8, "early": 4})
    parts += [audit(4, 3, {"lost": 1}, ONE), audit(5, 3, {}, OTHER)]
    assert hears(*parts).newest == AuditFacts(5, 10, {"lost": 3})
    assert hears(*parts[1:3]).newest == AuditFacts(3, 0, {"lost": 6, "early": 4})


def test_audits_and_comparisons_of_copies_are_heard_from_one_topic() -> None:
    compared = {"kind": "reconcile", "at_ms": 2, "findings": {}, "records": 4, "pending": 5}
    repairs = {"repairs": {"made": 3, "stopped": True, "left": {}, "failed": 0}}
    other = {"kind": "copy_finding", "finding": "missing", "offset": 7}
    told = [{**compared, **repairs}, audit(1, 9, {"lost": 1}), other, {**compared, "at_ms": "soon"}]
    assert hears(*told).newest == AuditFacts(1, 9, {"lost": 1})
    assert hears(*told).copies == ReconcileFacts(2, {}, 4, 5, 3, is_stopped=True)
    assert hears(*told, {**compared, "at_ms": 3}).copies == ReconcileFacts(3, {}, 4, 5)
