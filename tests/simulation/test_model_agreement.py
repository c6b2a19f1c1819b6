"""The real shard settles exactly what the protocol's model settles, commit by commit."""

import pytest

from tests.simulation.history import ViolationError
from tests.simulation.model_adapter import MODEL, Walk, load_model

WALKS = 1_000


@pytest.mark.skipif(
    not MODEL.exists(),
    reason="the protocol's model (shared/protocol_model) is not beside the project",
)
@pytest.mark.parametrize("window", [None, 1, 2])
def test_the_shard_agrees_with_the_model(window: int | None) -> None:
    model = load_model()
    commits = 0
    for seed in range(WALKS):
        walk = Walk(model, seed, window)
        try:
            walk.run()
        except ViolationError as broken:
            lines = "\n  ".join(walk.trace)
            pytest.fail(f"seed {seed}: {broken}\n  {lines}")
        commits += walk.commits
    assert commits > WALKS
