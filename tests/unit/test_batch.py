"""The size of a record batch, as brokers compute it."""

from __future__ import annotations

import pytest

from connectors.kafka.target_limits import batch_bytes
from delayservice.contract.entry import Headers


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, None, [], 68),  # 61 + length, attributes, two deltas, two nulls, no header
        (b"", b"", [], 68),
        (b"k", b"v" * 63, [], 133),
        (b"k", b"v" * 64, [], 135),  # two lengths take a byte more
        (None, b"v", [("name", b"\xff"), ("null", None)], 82),
        (None, b"v" * 1_000_000, [], 1_000_072),
    ],
)
def test_a_batch_of_one_record(
    key: bytes | None, value: bytes | None, headers: Headers, size: int
) -> None:
    assert batch_bytes(key, value, headers) == size
