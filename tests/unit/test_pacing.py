from delayservice.core.pacing import Pacer


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
