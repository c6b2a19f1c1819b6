"""The HTTP server of the admin API, on a thread of the supervisor: away from what delivers."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog
import uvicorn

from connectors.kafka.clients import admin_client
from connectors.kafka.control_topics import ControlReader
from connectors.kafka.controls import ControlDesk
from connectors.kafka.pauses import PauseWatcher
from delayservice.admin.app import make_app
from delayservice.admin.history import History
from delayservice.admin.inquiry import Workers
from delayservice.admin.panel import Panel
from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.config.admin import TOKEN_CHARS_MIN, made_token_path
from delayservice.config.settings import Settings
from delayservice.inspection.asking import Asker
from delayservice.metrics.hub import MetricsHub

_CONCURRENCY_MAX: Final = 256
_CLOSE_S: Final = 3
_LOOK_S: Final = 0.5

_log = structlog.get_logger(__name__)


def admin_token(settings: Settings) -> str:
    """The configured token; else one of this node's own, made once, which only its user may read.

    Raises:
        SettingsError: a file can't be read or written, or holds no token.
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
    """Write the token by a rename: half a token, or an empty one, would let anybody in."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(unfinished, flags, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


class _Server(uvicorn.Server):
    """Looks for its end less often than the original: ten times a second was a tenth of what an
    idle node takes.
    """

    async def main_loop(self) -> None:
        """Run until ``should_exit``; every look also sets the date that answers bear."""
        await self.on_tick(0)
        is_over = False
        while not is_over:
            await asyncio.sleep(_LOOK_S)
            is_over = await self.on_tick(0)


class AdminServer:
    """Serves the API until it is closed.

    Args:
        settings: of the node.
        hub: what the workers report.
        askers: the workers that there are now.
    """

    def __init__(
        self, settings: Settings, hub: MetricsHub, askers: Callable[[], Sequence[Asker]]
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
        panel = Panel(
            settings,
            hub=hub,
            inquiry=Workers(askers),
            history=self._history,
            admin=admin,
            desk=self._desk,
            pauses=pauses,
        )
        self._listen = settings.admin.listen
        self._server = _Server(
            uvicorn.Config(
                make_app(panel, admin_token(settings)),
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=_CONCURRENCY_MAX,
                timeout_graceful_shutdown=_CLOSE_S,
                lifespan="off",
                ws="none",
            )
        )
        # It would tell of its own start and end what the node's log says already.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._thread: threading.Thread | None = None

    def serve(self) -> str | None:
        """Listen, on a thread of its own.

        Returns:
            ``host:port`` that it listens on, or None when ``admin.listen`` is empty.

        Raises:
            DelayServiceError: the address can't be had.
        """
        if not self._listen:
            return None
        listener = _bound(self._listen)
        self._history.start()
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="admin", daemon=True
        )
        self._thread.start()
        host, port = listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def stop(self) -> None:
        """Accept no more requests, and end those that wait for workers which are about to stop."""
        self._history.close()
        self._desk.stop()
        self._server.should_exit = True

    def close(self) -> None:
        """Stop, and answer what was asked before. May be called without ``serve``."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_CLOSE_S + 1)


def _bound(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    except OSError as exc:
        listener.close()
        raise DelayServiceError(
            f"the admin API can't listen on {listen}: {exc.strerror or exc}; set admin.listen to a "
            "free address, port 0 for any, or nothing for none"
        ) from exc
    return listener
