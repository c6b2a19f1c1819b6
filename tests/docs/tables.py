"""Commands of the documentation that are not typed as they stand, each with its reason."""

from __future__ import annotations

from typing import Final

from tests.docs.pages import Block, Command, bare

_CONTAINERS = "make containers runs files and images"
_MACHINE = "would change the machine that runs the tests"
_STORE = "needs an object store"
_CHECKPOINT = "tests/integration/test_foreign_checkpoints.py: needs a slice without its checkpoint"
_DAMAGED = "tests/integration/test_damaged_log.py alters a segment"
_SUBMIT = "tests/spark/test_cluster_mode.py submits to a cluster of Spark"

NOT_TYPED: Final = {
    "make try": "tests/docs/test_try.py runs what it runs",
    "make demo": "minutes, and a job of its own",
    "make test": "its tests are the ones that don't need this one's servers",
    "make long": "this test is a part of it",
    "docker": _CONTAINERS,
    "kubectl": _CONTAINERS,
    "helm": "tests/unit/test_deploy_files.py renders it",
    "pip install": "tests/integration/test_packages.py installs it",
    "python3.11 -m venv": _MACHINE,
    "/opt/delayservice/bin/": _MACHINE,
    "env/bin/": _SUBMIT,
    "spark-submit": _SUBMIT,
    "sh connectors/spark/common/install_jars.sh": _MACHINE,
    "apt-get": _MACHINE,
    "ln -s": _MACHINE,
    "install -m 0644 deploy/systemd/delayservice-spark@.service": _MACHINE,
    "systemctl daemon-reload": "tests/unit/test_deploy_files.py asks systemd about the units",
    "systemctl enable": "tests/unit/test_deploy_files.py asks systemd about the units",
    "ssh": "needs a second machine",
    "zkCli.sh": "needs ZooKeeper's own shell, which no test installs",
    "kafka-transactions.sh": "needs a transaction that hangs",
    "kcat": _CHECKPOINT,
    "CHECKPOINT=": _CHECKPOINT,
    'echo "$SLICE|': _CHECKPOINT,
    "kafka-dump-log.sh": _DAMAGED,
    "kafka-delete-records.sh": _DAMAGED,
    "echo '{": _DAMAGED,
    "delayservice cluster rights": "tests/integration/test_ensemble_security.py: needs logins",
    "delayservice cluster pin": "tests/integration/test_pinning.py: needs an upgrade",
    "delayservice cluster unpin": "tests/integration/test_pinning.py: needs an upgrade",
    "delayservice dev bench whole --bootstrap": "needs a broker with TLS of yours",
    "delayservice dev bench failover": "tests/integration/test_bench.py: minutes",
    "delayservice dev drill --keep": "it leaves its files",
    "delayservice spark reconcile -c": "tests/spark/test_reconcile_follow.py: goes on",
    "delayservice spark schedule --stream": "tests/spark/test_schedule_killed.py: goes on",
    "delayservice spark schedule s3a:": _STORE,
    "delayservice spark archive --config": _STORE,
    "delayservice spark audit --archive": _STORE,
}
"""Commands that begin so are not typed, and why."""

_RECIPE = "tests/integration/test_client_recipes.py runs it"
_FRAGMENT = "a fragment: what it stands in is the reader's own"

PYTHON_NOT_RUN: Final = {
    "from connectors.spark.audit import AuditOptions, audit": "Spark: run by make night",
    "from connectors.spark.audit import AuditOptions, F": _FRAGMENT,
    "from datetime import": _RECIPE,
    "from connectors.kafka.client import LevelProducer": "needs levels",
    "to_reports =": _FRAGMENT,
    "producer.produce(": _FRAGMENT,
    "from connectors.spark.reconcile.store_source": _FRAGMENT,
    "from connectors.spark.reconcile.compare": _FRAGMENT,
}
"""Blocks of Python that begin so, and why they are not run; all are compiled."""


def is_listed(command: Command) -> bool:
    return bare(command.text).startswith(tuple(NOT_TYPED))


def is_python_listed(block: Block) -> bool:
    return block.text.startswith(tuple(PYTHON_NOT_RUN))


LONG: Final = (
    "delayservice dev bench",
    "delayservice dev drill",
    "delayservice spark",
    "kafka-acls.sh",
    "kafka-topics.sh",
)
"""What ``make night`` types: benches and Spark's jobs take minutes, Java's tools seconds each."""

SMALLER: Final = {
    "delayservice dev bench": " --no-warm-up --rounds 1",
    "delayservice dev bench whole": " --n 2000",
    "delayservice dev bench steady": " --seconds 3",
    "delayservice dev bench peers": " --n 100",
    "delayservice dev drill": " --records 1000 --defects 32",
    "delayservice spark schedule --from-topic": " --rejected refused",
}
"""What is added to a command that begins so, for it to end within a test's time; and where a stream
writes rejected rows, as the jobs that are typed in the same folder write to the default."""

SERVERS: Final = ("delayservice dev up", "delayservice run --config delayservice.toml")
"""They go on until they are told to end, each in a terminal of its own."""

ASKS: Final = ("delayservice dlq replay --code target-unknown --from -2h",)
"""They ask a person; ``y`` is typed."""

STATUSES: Final = {
    "delayservice record cancel": {0, 4},  # nothing waits under such an id
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
        "delayservice send lost --after 0 --target refused --force",
        QUOTA,
        "delayservice pause add topic delay_topic_any --reason tried",
    ),
}
"""What happens on the machine before somebody opens the page."""
