"""Pending records sifted out of a real log that is not read from its start."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from connectors.spark.common.pending import LogPart, before, sift, uncancelled, written_since_ms
from connectors.spark.reconcile.stored import HASHES
from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.cursor import Cursor
from tests.history import SECRET
from tests.spark.made_history import MadeHistory

DAY_MS = 86_400_000
CONTRACTS = Contracts([(0, Contract(roll_window_ms=DAY_MS))])


def offsets(sifted: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in uncancelled(sifted).collect())


def test_a_copy_may_be_cancelled_by_what_was_written_long_before_it(
    spark: SparkSession, cluster: EmbeddedCluster
) -> None:
    """H lags behind while K goes on: two records are rolled, and H comes to the cancel of one of
    them only then. With the secret, a forged one is left out.
    """
    h = MadeHistory(cluster.bootstrap, timestamps="CreateTime")
    client, topic, now_ms = h.client, h.delay, h.now_ms
    due_ms, old_ms = now_ms + DAY_MS // 2, now_ms - 10 * DAY_MS
    for name in (b"a", b"b", b"c"):
        h.source(old_ms, due_ms, ("delay-id", name))
    h.control(old_ms, b"a", b"cancel")
    for settles, name, base, secret in (
        (0, b"a", 3, SECRET),
        (1, b"b", 3, SECRET),
        (2, b"c", 0, SECRET),
        (2, b"forged", 3, b"a stranger's"),
    ):
        h.requeue(now_ms, settles, due_ms, base=base, name=name, secret=secret)
    h.flush()

    start, stop, place = 4, 8, (topic, 0)
    assert old_ms < written_since_ms(CONTRACTS, due_ms) <= now_ms
    parts = {place: LogPart(CONTRACTS, start, stop, Cursor((now_ms, 0), stop))}
    sifted = sift(spark, client, parts, HASHES, [SECRET], 2).persist()
    assert offsets(sifted) == [4, 5, 6]
    assert offsets(sift(spark, client, parts, HASHES, [], 2)) == [4, 5, 6, 7]
    earlier = before(sifted, parts)
    assert earlier == {place: parts[place]._replace(start=0, stop=start, from_ms=0, to_ms=0)}
    whole = sifted.union(sift(spark, client, earlier, HASHES, [SECRET], 2))
    assert offsets(whole) == [5]
    above = {place: parts[place]._replace(log_start=start)}
    assert before(sifted, above) == {}
    sifted.unpersist()
