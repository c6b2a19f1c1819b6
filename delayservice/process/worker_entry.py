"""Main function of a worker process: what it does before a ``Worker`` exists and after it ended."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import structlog

from connectors.kafka.clients import admin_client
from connectors.kafka.topics import TopicKeeper
from delayservice.base.clock import SystemClock
from delayservice.config.reference import secret_values
from delayservice.config.settings import Settings
from delayservice.contract.contracts import CONTRACT_VERSION
from delayservice.inspection.asking import answer_questions
from delayservice.process import fork_server, logs
from delayservice.process.stores import Stores
from delayservice.process.waiting import reporting, stop_event, wait_for_kafka
from delayservice.process.worker import EXIT_FAILED, EXIT_ORPHANED, Worker
from ha.elected_ownership import ElectedOwnership
from ha.notes import NodeNote
from ha.ownership import Ownership, Standalone
from ha.zookeeper_session import SharedSession

# Time from the naming of an heir (next owner) to the stop of the present owner, in s: enough for
# the heir's loop to notice and to begin opening a writer.
ALERT_S = 0.3

_log = structlog.get_logger(__name__)


def run_worker(
    settings: Settings,
    secrets: tuple[bytes, ...],
    instance: str,
    index: int,
    crashes: int,
    pipe: Connection,
    questions: Connection,
    session: SharedSession,
) -> None:
    """Run worker ``index`` as the main function of its process, and exit: with status 0 after
    SIGTERM, with another one after a failure. ``crashes``: consecutive earlier processes of this
    worker that ended soon after their start; ``pipe``: reports to the supervisor; ``questions``:
    queries and their answers.
    """
    hidden = [*secret_values(settings), *(secret.decode("latin-1") for secret in secrets)]
    logs.configure(settings.log, settings.node.node_id, index, secrets=hidden)
    stopping = stop_event(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what Ctrl-C means
    fork_server.accept_signals()
    keeper = TopicKeeper(admin_client(settings.kafka.client_config("admin")), settings)
    _end_with_supervisor(pipe)
    try:
        with reporting(pipe.send_bytes) as starting:
            layout = wait_for_kafka(keeper.layout, stopping, starting.waits)
            if layout is None:
                return
            stores = Stores(settings, index)
            with starting.opening():
                kept = stores.open()
            ownership = make_ownership(settings, instance, index, kept, session.note)
            worker = Worker(settings, secrets, index, ownership, layout, stores, crashes)
            answer_questions(questions, worker.answer)
            worker.begin()
        failed = worker.run(stopping, pipe.send_bytes)
    except BaseException:  # noqa: BLE001  # the process has no other handler
        # Without an exit the process would wait for its slices for ever.
        _log.exception("worker_failed", worker=index)
        failed = True
    os._exit(EXIT_FAILED if failed else 0)  # librdkafka's threads may outlive a clean exit


def _end_with_supervisor(pipe: Connection) -> None:
    # It could then be neither restarted nor stopped. Ending at once is as safe as any crash.

    def watch() -> None:
        with suppress(EOFError, OSError):
            pipe.recv_bytes()
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def make_ownership(
    settings: Settings,
    instance: str,
    index: int,
    kept: frozenset[int] = frozenset(),
    noted: Callable[[int, bytes], None] = lambda *_: None,
) -> Ownership:
    """Start and return the ownership of worker ``index``: by election in ZooKeeper, or alone
    without ``zookeeper.hosts``. ``kept``: slices of which it has copies. ``noted``: called with id
    and password of each ZooKeeper session; must return at once.
    """
    node = settings.node
    me = NodeNote(
        node.node_id,
        instance,
        node.workers,
        node.broker_id,
        node.rack,
        socket.gethostname(),
        CONTRACT_VERSION,
    )
    if settings.standalone:
        return Standalone(me, index)
    clock = SystemClock()
    elected = ElectedOwnership(
        settings.zookeeper,
        settings.placement,
        me,
        index,
        boot_s=clock.boot_s,
        alert_s=ALERT_S,
        kept=kept,
        noted=noted,
    )
    elected.start()
    return elected
