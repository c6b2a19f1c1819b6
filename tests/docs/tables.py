"""Commands of the documentation that are not typed as they stand, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Listed:
    """Commands that are not typed: those of a page that begin so, and why."""

    page: str
    begins: str
    why: str


_BENCHES = "docs/internals/benchmarks.md"
_DRILL = "docs/internals/drill.md"
_DIGESTS = "docs/internals/digests.md"
_PROCEDURES = "docs/internals/procedures.md"
_ON_SPARK = "docs/internals/spark-running.md"
_OTHERS = "docs/internals/other-systems.md"
_IMAGES = "no container engine on a build machine; make containers runs the file"
_IMAGE_STEPS = "fetches packages; make containers builds the images"
_SYSTEMD = "needs systemd as the first process; tests/unit/test_deploy_systemd.py checks the unit"
_KUBERNETES = "needs a cluster; tests/unit/test_deploy_kubernetes.py checks the manifests"
_MINUTES = "minutes; tests/integration/test_bench.py runs it with small sizes"
_SUBMIT = "needs a Spark cluster; tests/spark/test_cluster_mode.py submits to one"
_UNTIL = "goes on until it is stopped, as tests/spark/test_schedule_killed.py does"
_CHECKPOINT = (
    "needs kcat and a slice without its checkpoint; tests/integration/test_foreign_checkpoints.py"
)
_DAMAGED = "needs a damaged segment; tests/integration/test_damaged_log.py alters one"
_LOGINS = "needs an ensemble that asks for a login; tests/integration/test_ensemble_security.py"
_PINNED = "needs the cluster that is upgraded; tests/integration/test_pinning.py"
_PACKAGE = "the package is installed already, and spark is an extra of it"

NOT_TYPED: Final = (
    Listed("README.md", "make try", "tests/docs/test_try.py runs what it runs"),
    Listed("README.md", "make demo", "minutes, and a job of its own"),
    Listed("README.md", "make test", "its tests are the ones that don't need this one's servers"),
    Listed("README.md", "make long", "this test is a part of it"),
    Listed("docs/start.md", "make try", "tests/docs/test_try.py runs what it runs"),
    Listed(
        "docs/cli.md", "delayservice --", "typed by tests/docs/test_cli_page.py, in another home"
    ),
    Listed(
        _PROCEDURES,
        "zkCli.sh",
        "needs the shell that comes with ZooKeeper, which no test installs",
    ),
    Listed("docs/operations.md", "kafka-transactions.sh", "needs a transaction that hangs"),
    Listed("docs/deployment.md", "docker-compose", _IMAGES),
    Listed("docs/deployment.md", "docker build", _IMAGE_STEPS),
    Listed("docs/deployment.md", "python3.11 -m venv", _IMAGE_STEPS),
    Listed("docs/deployment.md", "/opt/delayservice/bin/pip", _IMAGE_STEPS),
    Listed("docs/deployment.md", "ln -s", "would stay on the machine that runs the tests"),
    Listed("docs/deployment.md", "systemctl", _SYSTEMD),
    Listed("docs/deployment.md", "kubectl", _KUBERNETES),
    Listed("docs/kubernetes.md", "kubectl", _KUBERNETES),
    Listed("docs/kubernetes.md", "helm", "tests/unit/test_deploy_helm.py renders it"),
    Listed(_PROCEDURES, "kcat", _CHECKPOINT),
    Listed(_PROCEDURES, "CHECKPOINT=", _CHECKPOINT),
    Listed(_PROCEDURES, 'echo "$SLICE|', _CHECKPOINT),
    Listed(_PROCEDURES, "kafka-dump-log.sh", _DAMAGED),
    Listed(_PROCEDURES, "kafka-delete-records.sh", _DAMAGED),
    Listed(_PROCEDURES, "echo '{", _DAMAGED),
    Listed(_PROCEDURES, "delayservice cluster rights", _LOGINS),
    Listed("docs/operations.md", "delayservice cluster pin", _PINNED),
    Listed("docs/operations.md", "delayservice cluster unpin", _PINNED),
    Listed(
        "docs/reconcile.md",
        "delayservice spark reconcile -c",
        "goes on until Ctrl-C; tests/spark/test_reconcile_follow.py starts it",
    ),
    Listed("docs/api.md", "ssh", "needs a second machine"),
    Listed(
        _BENCHES, "delayservice dev bench whole --bootstrap", "needs a broker with TLS of yours"
    ),
    Listed(_BENCHES, "delayservice dev bench failover", _MINUTES),
    Listed(_DRILL, "delayservice dev drill --keep", "it leaves its files"),
    Listed("docs/client.md", "pip install", "tests/integration/test_packages.py installs it"),
    Listed("docs/spark.md", "pip install", _PACKAGE),
    Listed("docs/spark.md", "delayservice spark schedule s3a:", "needs an object store"),
    Listed("docs/audit.md", "delayservice spark archive --config", "needs an object store"),
    Listed("docs/audit.md", "delayservice spark audit --archive", "needs an object store"),
    Listed(_ON_SPARK, "delayservice spark schedule --stream", _UNTIL),
    Listed("docs/spark.md", "docker", _IMAGES),
    Listed("docs/spark.md", "kubectl", _KUBERNETES),
    Listed(_ON_SPARK, "apt-get", _IMAGE_STEPS),
    Listed(_ON_SPARK, "/opt/delayservice/bin/", _IMAGE_STEPS),
    Listed(_ON_SPARK, "sh connectors/spark/common/install_jars.sh", _IMAGE_STEPS),
    Listed(_ON_SPARK, "install -m", _SYSTEMD),
    Listed(_ON_SPARK, "systemctl", _SYSTEMD),
    Listed(_ON_SPARK, "spark-submit", _SUBMIT),
    Listed(_ON_SPARK, "python3.11 -m venv", _SUBMIT),
    Listed(_ON_SPARK, "env/bin/", _SUBMIT),
)

_RECIPE = "run by tests/integration/test_client_recipes.py"
_FRAGMENT = "a fragment: what it stands in is the reader's own"

PYTHON_NOT_RUN: Final = (
    Listed("docs/audit.md", "from connectors.spark.audit import", "Spark: run by make night"),
    Listed(
        "docs/internals/audit-method.md",
        "from connectors.spark.audit import AuditOptions, F",
        _FRAGMENT,
    ),
    Listed("docs/client.md", "from datetime import", _RECIPE),
    Listed("docs/client.md", "from connectors.kafka.client import LevelProducer", "needs levels"),
    Listed("docs/header-contract.md", "to_reports =", _FRAGMENT),
    Listed(_OTHERS, "producer.produce(", _FRAGMENT),
    Listed(_DIGESTS, "from connectors.spark.reconcile.store_source", _FRAGMENT),
    Listed(_DIGESTS, "from connectors.spark.reconcile.compare", _FRAGMENT),
)
"""Blocks of Python that begin so, and why the pages' test does not run them; all are compiled."""

LONG: Final = (
    "delayservice dev bench",
    "delayservice dev drill",
    "delayservice spark",
    "kafka-acls.sh",
    "kafka-topics.sh",
    "kafka-configs.sh --bootstrap-server $B --alter --entity-type users",
)
"""What ``make night`` types: benches and Spark's jobs take minutes, Java's tools seconds each."""

SMALLER: Final = {
    "delayservice dev bench": " --no-warm-up --rounds 1",
    "delayservice dev bench whole": " --n 2000",
    "delayservice dev bench steady": " --seconds 3",
    "delayservice dev drill": " --records 1000 --defects 32",
}
"""What is added to a command that begins so, for it to end within a test's time."""

SERVERS: Final = ("delayservice dev up", "delayservice run --config delayservice.toml")
"""They go on until they are told to end, each in a terminal of its own."""

ASKS: Final = ("delayservice dlq replay --code target-unknown --from -2h",)
"""They ask a person; ``y`` is typed."""

STATUSES: Final = {
    "delayservice status": {0, 3},  # not healthy right after a worker was killed
    "metrics '^delay_target_parked'": {0, 1},  # no line: none waits
}
"""What a command that begins so may end with, besides 0."""

QUOTA: Final = (
    "kafka-configs.sh --bootstrap-server $B --alter --entity-type clients"
    " --entity-name delayservice --add-config producer_byte_rate=1000000"
)
BEFORE: Final = {
    "docs/api.md": ("delayservice send later --after 1h --target orders --id reminder-17",),
    "docs/reconcile.md": (
        "delayservice send later --after 1h --target orders --id reminder-17",
        "systemctl restart delayservice",  # at its end a node syncs what it has
    ),
    "docs/operations.md": (
        # A dead letter, a quota, a pause: what the run-books find and take away.
        "delayservice send lost --after 0 --target refused",
        QUOTA,
        "delayservice pause add topic delay_topic_any --reason tried",
    ),
}
"""What happens on the machine before somebody opens the page."""
