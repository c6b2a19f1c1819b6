"""The node: a supervisor and its worker processes.

The supervisor handles no records. It creates missing topics, starts workers, replaces a worker that
dies, serves metrics, and stops all workers in good order on SIGTERM.
"""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import IO, Final

import structlog

from connectors.kafka.clients import admin_client
from connectors.kafka.topic_configs import warn_of_losses
from connectors.kafka.topics import TopicKeeper
from delayservice.admin.http_server import HttpServer, make_metrics_app
from delayservice.admin.server import AdminServer
from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.base.secret_file import make_secret_file
from delayservice.config.reference import secret_values
from delayservice.config.settings import Settings, secret_of
from delayservice.engine.electability import SILENT_S_MAX, TURN_S_MAX, rest_s
from delayservice.inspection.asking import WorkerClient
from delayservice.metrics.hub import MetricsHub
from delayservice.process import fork_server, logs
from delayservice.process.fork_server import CONTEXT
from delayservice.process.option_check import check_options
from delayservice.process.stores import remove_strangers
from delayservice.process.waiting import stop_event, wait_for_kafka
from delayservice.process.worker import STOP_TIMEOUT_S
from delayservice.process.worker_entry import run_worker
from ha.zookeeper_session import SharedSession

# Longest pause before a worker is started again, in s. The pause doubles each time that the worker
# ends within ``STEADY_S`` of its start.
RESTART_WAIT_S_MAX = 30.0
# Age from which a worker that ends is started again after the shortest pause, in s.
STEADY_S = 60.0

_TURN_S: Final = 1.0
# Time from when a worker counts as silent (no report for ``SILENT_S_MAX``) to its kill, in s.
_GRACE_S: Final = 5.0
# Longest wait for the first report of a worker before its kill, in s, for busy machines.
_FIRST_REPORT_S_MAX: Final = 60.0
# Time for which a worker's loop may hang before the worker is killed, in s. It hangs when one
# iteration takes longer than ``TURN_S_MAX``; opening large stores on a slow disk takes a few
# minutes.
HUNG_S_MAX: Final = 300.0
_log = structlog.get_logger(__name__)


def run(settings: Settings) -> int:
    check_options(settings)
    logs.configure(settings.log, settings.node.node_id, secrets=secret_values(settings))
    stopping = stop_event(signal.SIGTERM, signal.SIGINT)
    _log.info("starting", pid=os.getpid(), standalone=settings.standalone)
    lock = _lock_state_dir(settings)
    known = (cluster_secret(settings), *settings.node.accepted_secrets())
    instance = node_instance(settings)
    hub = MetricsHub(settings)
    supervisor = Supervisor(settings, known, instance, hub)
    admin = AdminServer(settings, hub, lambda: supervisor.clients)
    metrics = HttpServer(make_metrics_app(hub), "metrics", settings.metrics.listen)
    try:
        # Before Kafka is reached, so that a waiting node can report it.
        if listening := metrics.serve():
            _log.info("metrics_served", url=listening)
        if asked_at := admin.serve():
            _log.info("admin_served", url=asked_at)
        if _prepare_topics(settings, stopping, hub):
            hub.kafka_missing("")
            remove_strangers(settings)
            supervisor.run(stopping)
        admin.stop()
        return supervisor.stop()
    finally:
        admin.close()
        metrics.close()
        lock.close()
        _log.info("stopped")


def _prepare_topics(settings: Settings, stopping: threading.Event, hub: MetricsHub) -> bool:
    """Create missing topics of the service, report settings by which they may lose records, and
    return True. Wait for Kafka if it does not answer, and tell ``hub`` the reason. Return False
    once ``stopping`` is set.
    """
    hub.kafka_missing("it has not answered yet")
    admin = admin_client(settings.kafka.client_config("admin"))
    keeper = TopicKeeper(admin, settings)

    def prepare() -> bool:
        keeper.prepare()
        hub.unsafe_settings = warn_of_losses(admin, settings)
        return True

    return bool(wait_for_kafka(prepare, stopping, hub.kafka_missing))


def _lock_state_dir(settings: Settings) -> IO[bytes]:
    folder = settings.node.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "node.lock").open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(
            f"node.state_dir {folder} is in use by another node; stop it, or give this one a "
            "folder of its own"
        ) from None
    except OSError as exc:
        raise SettingsError(f"node.state_dir {folder} can't be used: {exc}") from exc
    return lock


def cluster_secret(settings: Settings) -> bytes:
    """Return the cluster secret of the settings; if there is none, one that this node made once and
    keeps in its state folder.

    Raises:
        SettingsError: the state folder can't be written, or the file was cut off.
    """
    configured = settings.node.secret_bytes()
    if configured is not None:
        return configured
    path = settings.node.state_dir / "cluster_secret"
    try:
        if not path.exists():
            make_secret_file(path, secrets.token_hex(32))
            _log.warning(
                "secret_made",
                file=str(path),
                hint="keep it: a node without it can't read rolled records. Set "
                "node.cluster_secret to the same value on every node before adding a second one",
            )
        return secret_of(path, path.read_bytes())
    except OSError as exc:
        raise SettingsError(f"node.state_dir {settings.node.state_dir}: {exc}") from exc


def node_instance(settings: Settings) -> str:
    """Return the identity of this node among nodes of the same name. It is made once for a state
    folder, which one node at a time can lock.

    A copy of the folder is another node, because its file has another place on the disk. A folder
    that is moved within its file system stays the same node. A restored folder is a new node, which
    waits for the end of the old one's ZooKeeper session.
    """
    path = settings.node.state_dir / "instance"
    try:
        if not path.exists():
            make_secret_file(path, secrets.token_hex(8))
        place = path.stat()
        text = path.read_text(encoding="ascii")
        return f"{text}@{socket.gethostname()}/{place.st_dev:x}.{place.st_ino:x}"
    except OSError as exc:
        raise SettingsError(f"node.state_dir {settings.node.state_dir}: {exc}") from exc


@dataclass(slots=True)
class _Child:
    process: BaseProcess
    session: SharedSession
    client: WorkerClient
    started_s: float
    # Time since the worker's last report, in s, except while the supervisor is suspended.
    silent_s: float = 0.0
    # Time for which the worker's loop has hung, in s, except while the supervisor is suspended.
    hung_s: float = 0.0
    has_reported: bool = False
    # Whether the worker was killed because its loop hung.
    is_ended: bool = False


class Supervisor:
    """Process that starts, watches and restarts the worker processes."""

    def __init__(
        self, settings: Settings, cluster_secrets: tuple[bytes, ...], instance: str, hub: MetricsHub
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._cluster_secrets = cluster_secrets
        self._hub = hub
        self._children: dict[int, _Child] = {}
        # Reports of workers by their numbers; None: the worker has ended.
        self._reports: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()
        self._due_s: dict[int, float] = {}
        self._restarts: dict[int, int] = {}

    @property
    def clients(self) -> list[WorkerClient]:
        return [child.client for child in list(self._children.values())]

    def run(self, stopping: threading.Event) -> None:
        try:
            for index in range(self._settings.node.workers):
                self._start(index)
            while not stopping.is_set():
                began_s = time.monotonic()
                self._listen(min(_TURN_S, max(self._next_start_s - began_s, 0.0)))
                self._end_hung(min(time.monotonic() - began_s, _TURN_S))
                self._restart_dead()
        except BaseException:
            # Python waits for its child processes at exit: they would run on without a supervisor.
            _log.exception("supervisor_failed")
            self.kill()
            raise

    def _start(self, index: int) -> None:
        mine, its = CONTEXT.Pipe()
        asking, asked = CONTEXT.Pipe()
        session = SharedSession(CONTEXT)
        process = CONTEXT.Process(
            target=run_worker,
            args=(
                self._settings,
                self._cluster_secrets,
                self._instance,
                index,
                self._restarts.get(index, 0),
                its,
                asked,
                session,
            ),
            name=f"delayservice-worker-{index}",
        )
        fork_server.start(process)
        its.close()
        asked.close()
        client = WorkerClient(asking, f"worker {index}")
        self._children[index] = _Child(process, session, client, time.monotonic())
        # A worker may stop in the middle of a report, which blocks whoever reads it.
        reading = threading.Thread(
            target=self._read, args=(index, mine), name=f"reports-{index}", daemon=True
        )
        reading.start()
        _log.info("worker_started", worker=index, pid=process.pid)

    def _read(self, index: int, pipe: Connection) -> None:
        with pipe, suppress(EOFError, OSError):
            while True:
                self._reports.put((index, pipe.recv_bytes()))
        self._reports.put((index, None))

    def _listen(self, timeout_s: float) -> None:
        with suppress(Empty):
            index, report = self._reports.get(timeout=timeout_s)
            if report is None:
                self._buried(index)
                return
            self._hub.update(index, report)
            self._children[index].silent_s = 0.0
            self._children[index].has_reported = True

    def _end_hung(self, elapsed_s: float) -> None:
        # Killing is as safe as any crash.
        for index, child in self._children.items():
            child.silent_s += elapsed_s
            hangs = self._hub.turn_s(index) > TURN_S_MAX
            child.hung_s = child.hung_s + elapsed_s if hangs else 0.0
            limit_s = SILENT_S_MAX + _GRACE_S if child.has_reported else _FIRST_REPORT_S_MAX
            if child.silent_s > limit_s:
                _log.error("worker_silent", worker=index, silent_s=round(child.silent_s))
                child.silent_s = 0.0
                child.process.kill()
            elif child.hung_s > HUNG_S_MAX and not child.is_ended:
                _log.error("worker_hung", worker=index, hung_s=round(child.hung_s))
                child.is_ended = True
                child.process.kill()

    def _buried(self, index: int) -> None:
        child = self._children.pop(index)
        child.process.join()
        self._end_session(index, child)
        lived_s = time.monotonic() - child.started_s
        # A hang soon after the start counts as a crash soon after the start.
        steady_s = lived_s - child.hung_s
        tries = 0 if steady_s > STEADY_S else self._restarts.get(index, 0)
        wait_s = rest_s(tries, 0.2, RESTART_WAIT_S_MAX)
        self._restarts[index] = tries + 1
        self._due_s[index] = time.monotonic() + wait_s
        self._hub.forget(index)
        _log.error(
            "worker_died",
            worker=index,
            status=child.process.exitcode,
            lived_s=round(lived_s, 1),
            next_in_s=round(wait_s, 1),
        )

    def _end_session(self, index: int, child: _Child) -> None:
        # Other workers take its slices over before the session timeout.

        def run() -> None:
            try:
                if child.session.end(self._settings.zookeeper):
                    _log.info("worker_session_ended", worker=index)
            except DelayServiceError as exc:
                _log.warning("worker_session_left", worker=index, why=str(exc))

        threading.Thread(target=run, name=f"end-session-{index}", daemon=True).start()

    @property
    def _next_start_s(self) -> float:
        return min(self._due_s.values(), default=math.inf)

    def _restart_dead(self) -> None:
        for index, due_s in list(self._due_s.items()):
            if time.monotonic() >= due_s:
                del self._due_s[index]
                self._start(index)

    def kill(self) -> None:
        for child in self._children.values():
            child.process.kill()
            child.process.join()

    def stop(self) -> int:
        _log.info("stopping")
        for child in self._children.values():
            child.process.terminate()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S + 5.0
        status = 0
        for index, child in self._children.items():
            child.process.join(max(deadline_s - time.monotonic(), 0.0))
            if child.process.exitcode is None:
                _log.error("worker_killed", worker=index, hint="it did not stop in time")
                child.process.kill()
                child.process.join()
            status = status or int(child.process.exitcode != 0)
        return status
