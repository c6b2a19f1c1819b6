"""Server of a node's admin API and web page, and the admin token."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from connectors.kafka.clients import admin_client
from connectors.kafka.control_topics import ControlReader, PauseWatcher
from connectors.kafka.controls import ControlDesk
from delayservice.admin.app import make_app
from delayservice.admin.context import ApiContext
from delayservice.admin.history import History
from delayservice.admin.http_server import HttpServer
from delayservice.admin.inquiry import Workers
from delayservice.base.errors import SettingsError
from delayservice.config.admin import TOKEN_CHARS_MIN, made_token_path
from delayservice.config.settings import Settings
from delayservice.inspection.asking import WorkerClient
from delayservice.metrics.hub import MetricsHub

_log = structlog.get_logger(__name__)


def admin_token(settings: Settings) -> str:
    """Return the configured admin token. If there is none, return the one in a file of the node's
    state folder, which only the node's user can read; the first call makes it.

    Raises:
        SettingsError: the file can't be read or written, or contains no token.
    """
    configured = settings.admin.configured_token()
    if configured is not None:
        return configured
    path = made_token_path(settings.node.state_dir)
    try:
        if not path.exists():
            _make_token(path)
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the token in {path} can't be read or made: {exc}") from exc
    if len(token) < TOKEN_CHARS_MIN:
        raise SettingsError(
            f"{path} holds {len(token)} characters, and the token needs {TOKEN_CHARS_MIN} at "
            "least: delete it, and the node makes another when it starts"
        )
    return token


def _make_token(path: Path) -> None:
    """Write a new token to a file, and rename the finished file to ``path``: a partial or empty
    token would be a security hole.
    """
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(unfinished, flags, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


class AdminServer:
    """Server of the admin API and the web page.

    Args:
        settings: settings of the node.
        hub: source of the workers' metrics.
        askers: returns a client for each current worker.
    """

    def __init__(
        self, settings: Settings, hub: MetricsHub, askers: Callable[[], Sequence[WorkerClient]]
    ) -> None:
        kafka = settings.kafka
        admin = admin_client(kafka.client_config("admin"))
        self._desk = ControlDesk(
            kafka.client_config("producer"),
            kafka.client_config("consumer"),
            admin,
            settings.topics.outcomes,
        )
        self._history = History(hub.totals)
        pauses = PauseWatcher(settings.topics.pauses)
        ControlReader([pauses], kafka.client_config("consumer"), settings.node.node_id)
        context = ApiContext(
            settings,
            hub=hub,
            inquiry=Workers(askers),
            history=self._history,
            admin=admin,
            desk=self._desk,
            pauses=pauses,
        )
        app = make_app(context, admin_token(settings))
        self._server = HttpServer(app, "admin", settings.admin.listen)

    def serve(self) -> str | None:
        """Start to answer requests and to take samples. Return ``host:port`` of the open socket;
        None: ``admin.listen`` is empty, and there is no server.

        Raises:
            DelayServiceError: the address is in use, or is not an address of this machine.
        """
        listening = self._server.serve()
        if listening is not None:
            self._history.start()
        return listening

    def stop(self) -> None:
        """Stop accepting requests, and end those that wait for the outcome of a change."""
        self._history.close()
        self._desk.stop()
        self._server.stop()

    def close(self) -> None:
        """Stop accepting requests, and wait up to 4 s for the accepted ones. May be called without
        ``serve``.
        """
        self.stop()
        self._server.close()
