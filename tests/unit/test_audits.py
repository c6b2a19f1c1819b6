from connectors.kafka.audits import AuditSummary


def test_a_whole_audit_replaces_what_was_found_before() -> None:
    before = AuditSummary(1, 10, {"lost": 2})
    after = AuditSummary(2, 20, {})
    assert before.then(after) == after


def test_an_audit_of_a_range_adds_to_it() -> None:
    before = AuditSummary(1, 10, {"lost": 2})
    found = before.then(AuditSummary(2, 3, {"lost": 1, "early": 4}, whole=False))
    assert found == AuditSummary(1, 10, {"early": 4, "lost": 3})
