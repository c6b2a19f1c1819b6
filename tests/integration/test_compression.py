"""A service whose client compresses, with records of all sizes and targets of all limits."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import Bench, await_true

LIMITS = (2_000, 20_000, 200_000)
NIGHTLY = [pytest.param(codec, marks=pytest.mark.night) for codec in ("gzip", "snappy", "lz4")]
SIZES = (0, 500, 1_900, 15_000, 150_000, 900_000)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [*NIGHTLY, "zstd"])
def test_each_record_is_delivered_whole_or_dead_lettered_as_too_large(
    cluster: EmbeddedCluster, tmp_path: Path, codec: str
) -> None:
    parks = "delivery.park_delays_ms=" + ",".join(["500"] * 100)
    sets = (f"kafka.client.compression.type={codec}", "node.workers=1", parks)
    random = Random(codec)
    with Bench(cluster.bootstrap, tmp_path, sets=sets) as bench, bench.serving():
        targets = {
            limit: bench.target(f"{limit}", max_message_bytes=str(limit)) for limit in LIMITS
        }
        sent: dict[bytes, tuple[bytes, bool]] = {}
        for limit, target in targets.items():
            for size in SIZES:
                for value in (b"x" * size, random.randbytes(size)):
                    key = b"%d" % len(sent)
                    # A batch of random bytes is no smaller than they are.
                    sent[key] = value, size > limit and value[:1] != b"x"
                    bench.send_later(bench.to(target, 300), key=key, value=value)
        bench.producer.flush()
        taken: dict[bytes, list[bytes | None]] = {}
        refused: dict[bytes, list[str | None]] = {}

        def has_all() -> bool:
            taken.clear()
            refused.clear()
            for one in bench.read_all(*targets.values()):
                taken.setdefault(one.key or b"", []).append(one.value)
            for one in bench.read_all(bench.dead_letter):
                refused.setdefault(one.key or b"", []).append(one.header("delay-error"))
            return len(taken) + len(refused) >= len(sent)

        await_true(has_all, "each record is taken or refused", 90)
    assert {key: [value] for key, (value, _) in sent.items() if key in taken} == taken
    assert all(found == ["too-large"] for found in refused.values())
    assert {key for key, (_, is_too_large) in sent.items() if is_too_large} <= refused.keys()
    assert not taken.keys() & refused.keys()
    assert b"2" in taken, "a record is sent that is larger than the limit before it is compressed"
