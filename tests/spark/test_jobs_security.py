"""A broker with TLS, passwords and ACLs: what docs/security.md lists for the jobs is enough, and is
needed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.archive import ArchiveOptions, audit_archive, capture
from connectors.spark.audit import AuditOptions, AuditResult, audit
from connectors.spark.common.session import FAILURES
from connectors.spark.reconcile.digests import Expected
from connectors.spark.reconcile.options import ReconcileOptions, ReconcileResult
from connectors.spark.reconcile.run import reconcile
from delayservice.base.errors import KafkaEdgeError
from tests.integration.bench import SECRET, Bench, Seen, await_true
from tests.integration.secured import Right, SecureCluster, named, rights_of, secure_cluster
from tests.spark.audits import audit_options

AUDIT = rights_of("Who audits")
RECONCILE = rights_of("Who compares copies")
NODE = "n1"
RECORDS = 20
FAR_MS = 1_800_000


class History:
    """What a service was asked for and has done, on a cluster that asks who is asking."""

    def __init__(self, secure: SecureCluster, folder: Path) -> None:
        self.secure = secure
        sets = [f"node.node_id={NODE}", "node.workers=1", "digests.interval_ms=1s"]
        self.bench = Bench(secure.bootstrap, folder, sets=sets)
        self.target = self.bench.target("all")

    def play(self) -> None:
        """Delivered, refused, cancelled and pending records, and a digest that has all of them."""
        bench = self.bench
        bench.serve()
        for number in range(RECORDS):
            bench.send_later(bench.to(self.target, 0), value=b"%d" % number)
            bench.send_later(bench.to(self.target, FAR_MS, ("delay-id", f"id-{number}")))
        bench.send_later([("delay-target-topic", self.target)])
        bench.send([("delay-id", "id-0"), ("delay-op", "cancel")])
        bench.await_match(bench.outcomes, lambda one: one.header("delay-outcome") == "cancelled")
        bench.await_match(bench.dead_letter, lambda one: one.header("delay-error"))
        bench.read(self.target, RECORDS)
        await_true(self._is_reported, "a digest of all that is pending")

    def _is_reported(self) -> bool:
        rows = self.bench.read_all(self.bench.digests)
        cuts = [json.loads(row.value or b"{}") for row in rows if (row.key or b"")[:2] == b"c/"]
        return bool(cuts) and cuts[-1]["h"] == 2 * RECORDS + 2

    def user(self, rights: list[Right]) -> User:
        """Somebody new who has some rights."""
        name = f"user-{uuid.uuid4().hex[:8]}"
        self.secure.add_user(name)
        self.secure.grant(name, named(self.bench, rights))
        return User(self, self.secure.client(name))


class User:
    """Runs jobs."""

    def __init__(self, history: History, client: dict[str, str]) -> None:
        self.bench = history.bench
        self.client = client

    def _audit_options(self, out: Path) -> AuditOptions:
        return audit_options(
            self.bench,
            out,
            client=self.client,
            delay_topics=(self.bench.any,),
            secrets=(SECRET.encode(),),
            topic=self.bench.audit,
        )

    def audit(self, spark: SparkSession, out: Path) -> AuditResult:
        return audit(spark, self._audit_options(out))

    def archive(self, spark: SparkSession, out: Path) -> AuditResult:
        """What an archive that this user writes has to say."""
        options = self._audit_options(out / "archive")
        capture(spark, ArchiveOptions(options))
        nowhere = AuditOptions({}, str(out / "verdict"), allow=options.allow)
        return audit_archive(spark, nowhere, options.out)

    def reconcile(self, spark: SparkSession, out: Path) -> ReconcileResult:
        """Every slot against the log, and every record with an id asked for."""
        bench = self.bench
        options = ReconcileOptions(
            client=self.client,
            out=str(out),
            checkpoint=bench.checkpoint,
            digests=bench.digests,
            repairs=bench.repairs,
            expected=Expected((NODE,), 1, 600_000),
            deep=True,
            secrets=(SECRET.encode(),),
            answer_timeout_s=20.0,
            topic=bench.audit,
        )
        return reconcile(spark, options)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with secure_cluster(tmp_path_factory.mktemp("tls")) as secure:
        made = History(secure, tmp_path_factory.mktemp("node"))
        with made.bench:
            made.play()
            yield made


def said(history: History, kind: str) -> int:
    """How many summaries were published, once there is one: a commit is answered before all can
    read what it committed.
    """
    bench = history.bench

    def is_one(row: Seen) -> bool:
        return bool(json.loads(row.value or b"{}")["kind"] == kind)

    bench.await_match(bench.audit, is_one)
    return sum(map(is_one, bench.read_all(bench.audit)))


def without(rights: list[Right], missing: Right) -> list[Right]:
    return [right for right in rights if right != missing]


def test_the_listed_rights_are_enough_to_audit_and_to_archive(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    user = history.user(AUDIT)
    for found in (user.audit(spark, tmp_path / "audit"), user.archive(spark, tmp_path)):
        assert (found.status, found.findings, found.unjudged) == (0, {}, {}), found.cut.notes
        assert found.counts["delivered"] == RECORDS
        assert found.counts["pending"] == RECORDS - 1
    assert said(history, "summary") == 1


def test_the_listed_rights_are_enough_to_compare_copies(
    history: History, spark: SparkSession, tmp_path: Path
) -> None:
    found = history.user(RECONCILE).reconcile(spark, tmp_path)
    assert found.is_clean, found.findings
    assert found.counts.records == RECORDS - 1
    assert found.notes == ()
    assert said(history, "reconcile") == 1


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize("missing", AUDIT, ids=str)
def test_an_audit_that_lacks_a_right_proves_nothing(
    history: History, spark: SparkSession, tmp_path: Path, missing: Right
) -> None:
    user = history.user(without(AUDIT, missing))
    try:
        status = user.audit(spark, tmp_path).status
    except (KafkaEdgeError, *FAILURES):
        return
    assert status != 0


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.parametrize("missing", RECONCILE, ids=str)
def test_a_comparison_that_lacks_a_right_finds_no_copy_right(
    history: History, spark: SparkSession, tmp_path: Path, missing: Right
) -> None:
    user = history.user(without(RECONCILE, missing))
    with pytest.raises((KafkaEdgeError, *FAILURES)):
        user.reconcile(spark, tmp_path)
