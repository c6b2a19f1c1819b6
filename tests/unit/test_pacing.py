import pytest

from delayservice.config.settings import Settings
from delayservice.engine.pacing import Pacer
from delayservice.slices.edges import limits_of


def test_an_idle_slice_commits_as_often_as_it_may() -> None:
    assert Pacer(20, 100).interval_ms == 20


def test_slow_commits_stretch_the_interval_up_to_its_bound() -> None:
    pacer = Pacer(20, 100)
    for _ in range(50):
        pacer.observe(15)
    assert 22 < pacer.interval_ms <= 22.5
    for _ in range(50):
        pacer.observe(1_000)
    assert pacer.interval_ms == 100


def test_the_interval_shrinks_again_when_commits_are_quick() -> None:
    pacer = Pacer(20, 100)
    for commit_ms in [1_000] * 50 + [1] * 50:
        pacer.observe(commit_ms)
    assert pacer.interval_ms == 20


def test_a_budget_above_the_longest_interval_wins() -> None:
    assert Pacer(500, 100).interval_ms == 500


@pytest.mark.parametrize(
    ("mode", "per_s_max", "interval_ms"),
    [
        ("exactly_once", 200, (20, 90)),
        ("exactly_once", 20, (100, 100)),  # two workers share the budget of the node
        ("at_least_once", 200, (90, 90)),  # a transaction shows no record
        ("at_least_once", 20, (100, 100)),
    ],
)
def test_a_transaction_that_shows_no_record_is_committed_as_rarely_as_may_be(
    mode: str, per_s_max: int, interval_ms: tuple[int, int]
) -> None:
    delivery = {
        "mode": mode,
        "transactions_per_s_max": per_s_max,
        "transaction_interval_ms_min": 20,
        "transaction_interval_ms_max": 90,
    }
    limits = limits_of(Settings.model_validate({"delivery": delivery, "node": {"workers": 2}}))
    found = (limits.transaction_interval_ms_min, limits.transaction_interval_ms_max)
    assert found == interval_ms
