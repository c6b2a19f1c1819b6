"""Every command of the documentation, typed word by word where it runs.

The machine is made as the README says: its first terminal starts a broker, its second a node with
the page's own configuration, and every other page finds them running. What is not typed, and why,
is in ``tables``; ``tests/unit/test_docs.py`` parses it at least.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs don't re-export

from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.servers import ANY_PORTS
from delay_devtools.service import ServiceProcess
from tests.docs.pages import Command, bare, blocks, commands
from tests.docs.tables import BEFORE, LONG, SERVERS, SMALLER, is_listed, is_python_listed
from tests.docs.terminal import Machine, Terminal
from tests.integration.bench import await_true

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

README: Final = "README.md"
TYPED: Final = [one for one in commands() if not is_listed(one)]
OTHER_PAGES: Final = sorted({one.page for one in TYPED} - {README, "docs/start.md"})
RUN_BOOKS: Final = "docs/operations.md"
ALLOWED: Final = {"DELAYSERVICE_TARGETS__DEFAULT__ALLOW": "orders*,mails,calls"}
"""The README's targets, and those of docs/spark.md."""
CONSUMER: Final = "python consume.py"


def is_long(command: Command) -> bool:
    return bare(command.text).startswith(LONG)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine as the README leaves it: a broker, a node, a consumer, and four records sent."""
    with Machine(tmp_path_factory.mktemp("machine"), ALLOWED) as made:
        _save(made, "toml", "delayservice.toml")
        _save(made, "python", "consume.py")
        with Terminal(made) as terminal:
            for command in commands(README):
                if not is_listed(command):
                    _type_of_readme(made, terminal, command)
            made.environment |= terminal.exported
        yield made


def _save(machine: Machine, language: str, name: str) -> None:
    """The first block in a language is the file that the text before it names."""
    text = blocks(language, README)[0].text
    (machine.folder / name).write_text(text, "utf-8")


def _type_of_readme(machine: Machine, terminal: Terminal, command: Command) -> None:
    terminal.type(command)
    said = bare(command.text)
    if said == SERVERS[0]:
        machine.has_broker(machine.servers[said].await_said(r"Kafka\s+(\S+:\d+)"))
    if said == SERVERS[1]:
        machine.await_node()
        machine.serve(CONSUMER, terminal.exported)


def test_the_readmes_consumer_does_not_see_what_was_cancelled(machine: Machine) -> None:
    consumer = machine.servers[CONSUMER]
    consumer.await_said(r"b'order-17' b'hello' (.*delay-source)")
    with Terminal(machine) as terminal:
        line = "delayservice record list --json"
        shown = terminal.type(Command(README, README, line))
    assert "reminder-17" not in shown
    assert "later" not in consumer.log.read_text()


def test_the_readmes_producer_delivers(machine: Machine) -> None:
    (machine.folder / "produce.py").write_text(blocks("python", README)[1].text, "utf-8")
    with Terminal(machine) as terminal:
        terminal.type(Command(README, README, "python produce.py"))
        line = "delayservice record fire order-17 --json"
        assert json.loads(terminal.type(Command(README, README, line)))["outcome"] == "fired"
    machine.servers[CONSUMER].await_said(r"b'order-17' b'pay now' (.*delay-id)")


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.night] if p == RUN_BOOKS else []) for p in OTHER_PAGES],
)
def test_every_command_of_a_page_runs(machine: Machine, page: str) -> None:
    typed: set[str] = set()
    with Terminal(machine) as terminal:
        for line in BEFORE.get(page, ()):
            terminal.type(Command(page, f"before {page}", line))
        for command in commands(page):
            if is_listed(command) or is_long(command) or command.text in typed:
                continue
            # Run-books ask the same again and again; what stops or starts the node counts anew.
            if not command.text.startswith("systemctl "):
                typed.add(command.text)
            _assert_not_refused(command, terminal.type(command))


PYTHON_PAGES: Final = sorted(
    {one.page for one in blocks("python") if not is_python_listed(one)} - {README}
)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_of_a_page_runs(machine: Machine, page: str) -> None:
    # The blocks run one after the other, as a reader would type them.
    whole = [one.text for one in blocks("python", page) if not is_python_listed(one)]
    script = machine.folder / f"{Path(page).stem}.py"
    script.write_text(machine.here("\n".join([*whole, "producer.flush()\n"])), "utf-8")
    with Terminal(machine) as terminal:
        terminal.type(Command(page, page, f"python {script.name}"))


def _assert_not_refused(command: Command, shown: str) -> None:
    """Fail if the API refused the request: curl ends with 0 in that case too."""
    answer: object = None
    with suppress(ValueError):
        answer = json.loads(shown)
    is_problem = isinstance(answer, dict) and {"title", "detail"} <= answer.keys()
    assert not is_problem, f"{command.place}: {shown}"


# --- what takes longer ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inputs(machine: Machine) -> None:
    """Make the rows that docs/spark.md schedules, and the topics where they go."""
    due_at = datetime.now(UTC) + timedelta(days=1)
    rows = [
        {"due_at": due_at, "body": f"remind {n}", "user": f"user-{n}", "reminder_id": f"r-{n}"}
        for n in range(20)
    ]
    pq.write_table(pa.Table.from_pylist(rows), machine.folder / "reminders.parquet")
    (machine.folder / "calls.csv").write_text("who,level\nada,1\ngrace,2\n", "utf-8")
    admin = AdminClient({"bootstrap.servers": machine.environment["B"]})
    new = [NewTopic(name, 1, 1) for name in ("mails", "calls", "signups")]
    for made in admin.create_topics(new).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": machine.environment["B"]})
    signup = {"user": "ada", "trial_ends": due_at.isoformat()}
    producer.produce("signups", json.dumps(signup))
    assert producer.flush(30) == 0


@pytest.mark.night
@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    "command",
    [one for one in TYPED if is_long(one) and bare(one.text).startswith("delayservice ")],
    ids=lambda one: f"{one.place} {bare(one.text)}",
)
def test_benches_and_jobs_are_typed_with_small_sizes(machine: Machine, command: Command) -> None:
    said = bare(command.text)
    more = "".join(words for begins, words in SMALLER.items() if said.startswith(begins))
    with Terminal(machine) as terminal:
        terminal.type(command, more)


@pytest.mark.night
def test_the_audit_of_the_page_is_clean(machine: Machine) -> None:
    text = machine.here(blocks("python", "docs/audit.md")[0].text)
    (machine.folder / "audited.py").write_text(text, "utf-8")
    with Terminal(machine) as terminal:
        shown = terminal.type(Command("docs/audit.md", "docs/audit.md", "python audited.py"))
    assert "{} {} (OffsetRange(" in shown  # nothing found, nothing left unjudged


AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.mark.night
def test_a_node_serves_the_topics_that_an_operator_makes(tmp_path: Path) -> None:
    # On a broker that asks for rights, where Kafka's tools find nothing done already.
    with (
        EmbeddedCluster(1, 0, broker_properties=AUTHORIZER) as cluster,
        Machine(tmp_path, {"DELAYSERVICE_KAFKA__BOOTSTRAP": cluster.bootstrap}) as machine,
    ):
        machine.has_broker(cluster.bootstrap)
        with Terminal(machine) as terminal:
            for command in TYPED:
                said = bare(command.text)
                is_tool = is_long(command) and not said.startswith("delayservice ")
                if is_tool or said.startswith("delayservice topics "):
                    terminal.type(command)
        sets = [
            f"kafka.bootstrap={cluster.bootstrap}",
            f"node.state_dir={tmp_path / 'state'}",
            "topics.create=false",
            *ANY_PORTS,
        ]
        log = tmp_path / "node.log"
        with ServiceProcess(sets, log) as service:
            service.wait_serving(4)
            await_true(lambda: service.events("took_over"), "it serves", 90)
            assert not service.events("topic_not_served")
            assert not service.events("waiting_for_kafka")
            assert service.stop() == 0
