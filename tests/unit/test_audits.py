from connectors.kafka.audits import AuditSummaries, AuditSummary

ONE, OTHER = (("delay_topic_any", 0, 0, 8_192),), (("delay_topic_any", 1, 0, 8_192),)


def together(*summaries: AuditSummary) -> AuditSummary:
    heard = AuditSummaries()
    for summary in summaries:
        heard.add(summary)
    return heard.together()


def test_a_whole_audit_replaces_what_was_found_before() -> None:
    before, of_range = AuditSummary(1, 10, {"lost": 2}), AuditSummary(2, 3, {"lost": 1}, ONE)
    after = AuditSummary(3, 20, {})
    assert together(before, of_range, after) == after


def test_audits_of_ranges_add_to_it() -> None:
    before = AuditSummary(1, 10, {"lost": 2})
    of_one = AuditSummary(2, 3, {"lost": 1, "early": 4}, ONE)
    of_other = AuditSummary(3, 3, {"lost": 5}, OTHER)
    assert together(before, of_one, of_other) == AuditSummary(3, 10, {"lost": 8, "early": 4})


def test_a_range_that_is_audited_again_counts_once() -> None:
    first = AuditSummary(1, 3, {"lost": 1}, ONE)
    again = AuditSummary(2, 3, {"lost": 1}, ONE)
    mended = AuditSummary(3, 3, {}, ONE)
    assert together(first, again) == AuditSummary(2, 0, {"lost": 1})
    assert together(first, again, mended) == AuditSummary(3, 0, {})
