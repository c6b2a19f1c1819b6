"""A session with ZooKeeper: its connection, single requests and batches, and watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent

from delayservice.config.cluster import ZooKeeper
from ha.kazoo_client import KazooLog, make_client
from ha.notes import (
    decode,
)
from ha.pipeline import EnsembleError, Pipeline

_CLOSE_S: Final = 1.0

MEMBERS: Final = -1
"""In place of a slice: the nodes, or which of them live."""
EVERYTHING: Final = -2
"""In place of a slice: all that was looked at before."""

_Key = TypeVar("_Key")
_Note = TypeVar("_Note", bound=msgspec.Struct)


class Session:
    """One session, which can be replaced by a new one.

    Args:
        options: where ZooKeeper is and how to log in.
        changed: called, from a thread of kazoo's, with what is to be looked at again: a slice, or
            ``MEMBERS``, or ``EVERYTHING`` when the connection comes or goes. Must not block.
    """

    def __init__(self, options: ZooKeeper, changed: Callable[[int], None]) -> None:
        self._options = options
        self._changed = changed
        self._root = options.root
        self._kazoo_log = KazooLog()
        self._lost = threading.Event()
        self._is_refused = False
        self._unreadable: set[str] = set()
        self._client = self._new_client()

    def _new_client(self) -> KazooClient:
        client = make_client(self._options, self._kazoo_log)
        client.add_listener(self._listen)
        return client

    def _listen(self, state: str) -> None:
        if state == KazooState.LOST:
            # Only now: a moment later kazoo calls it closed.
            self._is_refused = self._client.client_state == KeeperState.AUTH_FAILED
            self._lost.set()
        self._changed(EVERYTHING)

    def connect(self) -> None:
        """Begin to connect, and go on for ever; returns at once."""
        self._client.start_async()

    def replace(self) -> None:
        """Give the session up for a new one: the old one is beyond repair."""
        old = self._client
        old.remove_listener(self._listen)
        self._is_refused = False
        self._client = self._new_client()
        self._lost.set()
        _close_beside(old)
        self.connect()

    def close(self) -> None:
        """End the session: its nodes go at once, or with the session when there is no answer."""
        self._client.remove_listener(self._listen)
        _close_beside(self._client).join(_CLOSE_S)

    @property
    def is_connected(self) -> bool:
        """Return whether the connection stands."""
        return bool(self._client.connected)

    @property
    def is_refused(self) -> bool:
        """Return whether the login was refused; kazoo does not try again then."""
        return self._is_refused

    @property
    def trouble(self) -> str:
        """Return why there is no connection, as far as kazoo says; empty when it has not said."""
        return self._kazoo_log.trouble

    def take_lost(self) -> bool:
        """Return whether the session was lost since this was asked last."""
        was_lost = self._lost.is_set()
        self._lost.clear()
        return was_lost

    @property
    def is_lost(self) -> bool:
        """Return whether that is still to be asked."""
        return self._lost.is_set()

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that the ensemble granted; before that, the one asked for."""
        granted_s = self._kazoo_log.session_timeout_ms / 1000
        return granted_s or float(self._options.session_timeout_s)

    @property
    def _session_id(self) -> int | None:
        client_id = self._client.client_id
        return None if client_id is None else int(client_id[0])

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def _ask(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Ask and wait for the answer."""
        pipeline = Pipeline(self._client, self.session_timeout_s)
        return pipeline.ask(partial(call, *args, **options))

    @contextmanager
    def _batch(self) -> Iterator[Pipeline]:
        """Requests that don't wait for each other; raises the first failure at the end."""
        pipeline = Pipeline(self._client, self.session_timeout_s)
        yield pipeline
        pipeline.raise_failure()

    def _watched_children(self, folder: str) -> list[str]:
        return self._children(folder, self._watch)

    def _children(self, folder: str, watch: Callable[[WatchedEvent], None] | None) -> list[str]:
        path = self._path(folder)
        with still_there(path):
            return list(self._ask(self._client.get_children_async, path, watch=watch))

    def _read(
        self, batch: Pipeline, paths: Mapping[_Key, str], kind: type[_Note], **options: object
    ) -> dict[_Key, tuple[_Note | None, int] | None]:
        """Notes and the sessions that hold them; None where there is no such node."""
        found = batch.ask_all(each(self._client.get_async, paths, **options))
        return {
            key: None
            if isinstance(read, NoNodeError)
            else (decode(read[0], kind), int(read[1].ephemeralOwner))
            for key, read in found.items()
        }

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        try:
            with still_there(path):
                self._ask(self._client.create_async, path, data, ephemeral=ephemeral)
        except NodeExistsError:
            return False
        return True

    def _put(self, path: str, data: bytes) -> None:
        if not self._create(path, data):
            with still_there(path):
                self._ask(self._client.set_async, path, data)

    def _delete(self, path: str) -> None:
        with suppress(NoNodeError):
            self._ask(self._client.delete_async, path)

    def _watch(self, event: WatchedEvent) -> None:
        path = str(event.path or "")
        if path.endswith("/owner"):
            self._changed(int(path.split("/")[-2]))
        else:
            self._changed(MEMBERS if path else EVERYTHING)


@contextmanager
def still_there(path: str) -> Iterator[None]:
    """Take a node that was removed by hand meanwhile for a missing answer: the next turn makes it
    again.
    """
    try:
        yield
    except NoNodeError as exc:
        raise EnsembleError(f"{path}, or what it lay in, has been removed by hand") from exc


def each(
    call: Callable[..., Any], paths: Mapping[_Key, str], **options: object
) -> dict[_Key, Callable[[], Any]]:
    """Send the same request for each path."""
    return {key: partial(call, path, **options) for key, path in paths.items()}


def _close_beside(client: KazooClient) -> threading.Thread:
    """Kazoo waits for ten seconds for an answer."""
    closing = threading.Thread(target=_close, args=(client,), name="zookeeper-close", daemon=True)
    closing.start()
    return closing


def _close(client: KazooClient) -> None:
    with suppress(KazooException):
        client.stop()
        client.close()
