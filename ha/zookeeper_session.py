"""A session with ZooKeeper: connection, single requests and batches, watches, and early end."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, Final, TypeVar

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent

from delayservice.config.cluster import ZooKeeper
from ha.kazoo_client import KazooLog, connected, make_client
from ha.notes import decode
from ha.pipeline import EnsembleError, Pipeline

_CLOSE_S: Final = 1.0

# Value in place of a slice number: the members, the live workers or the pin have changed.
MEMBERS: Final = -1
# Value in place of a slice number: everything is to be read from ZooKeeper again.
EVERYTHING: Final = -2

_Key = TypeVar("_Key")
_Note = TypeVar("_Note", bound=msgspec.Struct)


class Session:
    """Session with ZooKeeper, which can be replaced by a new one."""

    def __init__(
        self,
        options: ZooKeeper,
        # Called, from a thread of kazoo's, with what to read again: the number of a slice,
        # ``MEMBERS``, or ``EVERYTHING`` when the connection comes or goes. Must not block.
        changed: Callable[[int], None],
        # Called in the same way with id and password of each session.
        noted: Callable[[int, bytes], None] = lambda *_: None,
    ) -> None:
        self._options = options
        self._changed = changed
        self._noted = noted
        self._root = options.root
        self._kazoo_log = KazooLog()
        self._lost = threading.Event()
        # Whether ZooKeeper refused the login, so that kazoo does not retry.
        self.is_refused = False
        self.client = self._new_client()

    def _new_client(self) -> KazooClient:
        client = make_client(self._options, self._kazoo_log)
        client.add_listener(self._listen)
        return client

    def _listen(self, state: str) -> None:
        if state == KazooState.LOST:
            # Only now: a moment later kazoo calls it closed.
            self.is_refused = self.client.client_state == KeeperState.AUTH_FAILED
            self._lost.set()
        elif (resumable := self.client.client_id) is not None:
            self._noted(*resumable)
        self._changed(EVERYTHING)

    def connect(self) -> None:
        self.client.start_async()

    def replace(self) -> None:
        # kazoo does not repair a failed session.
        old = self.client
        old.remove_listener(self._listen)
        self.is_refused = False
        self.client = self._new_client()
        self._lost.set()
        _close_beside(old)
        self.connect()

    def close(self) -> None:
        # Its ephemeral nodes vanish at once, or at the session timeout if ZooKeeper is silent.
        self.client.remove_listener(self._listen)
        _close_beside(self.client).join(_CLOSE_S)

    @property
    def is_connected(self) -> bool:
        return bool(self.client.connected)

    @property
    def trouble(self) -> str:
        return self._kazoo_log.trouble

    def take_lost(self) -> bool:
        was_lost = self._lost.is_set()
        self._lost.clear()
        return was_lost

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    @property
    def session_timeout_s(self) -> float:
        # Before a connection, the requested one.
        granted_s = self._kazoo_log.session_timeout_ms / 1000
        return granted_s or float(self._options.session_timeout_s)

    @property
    def session_id(self) -> int | None:
        client_id = self.client.client_id
        return None if client_id is None else int(client_id[0])

    def path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def ask(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Send one request by ``call``, an asynchronous method of kazoo's client; return its
        answer.
        """
        pipeline = Pipeline(self.client, self.session_timeout_s)
        return pipeline.ask(partial(call, *args, **options))

    def sync(self, *parts: str) -> None:
        self.ask(self.client.sync_async, self.path(*parts))

    @contextmanager
    def batch(self) -> Iterator[Pipeline]:
        # The first failure of the batch is raised when the context ends.
        pipeline = Pipeline(self.client, self.session_timeout_s)
        yield pipeline
        pipeline.raise_failure()

    def children(self, folder: str, *, is_watched: bool = True) -> list[str]:
        # ``is_watched``: call ``changed`` at the folder's next change.
        path, watch = self.path(folder), self.watch if is_watched else None
        with still_there(path):
            return list(self.ask(self.client.get_children_async, path, watch=watch))

    def read(
        self, batch: Pipeline, paths: Mapping[_Key, str], kind: type[_Note], **options: object
    ) -> dict[_Key, tuple[_Note | None, int] | None]:
        """Read the notes at ``paths`` in a batch. Return by key the note (None: unreadable) and the
        id of the session that holds its ZooKeeper node (0: no session); or None: there is no such
        node. Requests that failed are left out. ``options``: arguments of kazoo's ``get_async``.
        """
        found = batch.ask_all(each(self.client.get_async, paths, **options))
        return {
            key: None
            if isinstance(read, NoNodeError)
            else (decode(read[0], kind), int(read[1].ephemeralOwner))
            for key, read in found.items()
        }

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        try:
            with still_there(path):
                self.ask(self.client.create_async, path, data, ephemeral=ephemeral)
        except NodeExistsError:
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        if not self.create(path, data):
            with still_there(path):
                self.ask(self.client.set_async, path, data)

    def delete(self, path: str) -> None:
        with suppress(NoNodeError):
            self.ask(self.client.delete_async, path)

    def watch(self, event: WatchedEvent) -> None:
        path = str(event.path or "")
        if path.endswith("/owner"):
            self._changed(int(path.split("/")[-2]))
        else:
            self._changed(MEMBERS if path else EVERYTHING)


@contextmanager
def still_there(path: str) -> Iterator[None]:
    """Raise ``EnsembleError`` if the ``with`` block fails because the ZooKeeper node at ``path`` or
    one above it is missing: it was removed by hand, and the next ``prepare`` creates it again.
    """
    try:
        yield
    except NoNodeError as exc:
        raise EnsembleError(f"{path}, or what it lay in, has been removed by hand") from exc


def each(
    call: Callable[..., Any], paths: Mapping[_Key, str], **options: object
) -> dict[_Key, Callable[[], Any]]:
    """Return a request for each of ``paths``, by key, without sending it: a call of ``call``, an
    asynchronous method of kazoo's client, with the path and ``options``.
    """
    return {key: partial(call, path, **options) for key, path in paths.items()}


def _close_beside(client: KazooClient) -> threading.Thread:
    # kazoo waits up to 10 s for an answer.
    closing = threading.Thread(target=_close, args=(client,), name="zookeeper-close", daemon=True)
    closing.start()
    return closing


def _close(client: KazooClient) -> None:
    with suppress(KazooException):
        client.stop()
        client.close()


# Id and password of a session; id 0: there was no session yet.
_LAYOUT: Final = struct.Struct(">q16s")


class SharedSession:
    """Id and password of a worker's present session, in memory shared with its supervisor, which
    ends the session when the process has died. They are never logged: who knows them can do so.

    Otherwise the worker's notes stay until the session timeout, and its slices have no owner. A
    session that ends too early does no harm: a take-over fences former writers in any case.
    """

    def __init__(self, context: BaseContext) -> None:
        self._memory = context.RawArray(ctypes.c_char, _LAYOUT.size)

    def note(self, session_id: int, password: bytes) -> None:
        self._memory.raw = _LAYOUT.pack(session_id, password)

    def end(self, options: ZooKeeper) -> bool:
        """End the session, in the supervisor, after the worker process has died; return False if
        there was none. A session that has ended already, or was noted by half, is left alone.
        """
        session_id, password = _LAYOUT.unpack(self._memory.raw)
        if not session_id:
            return False
        # A client that resumes the session, and ends it as its own.
        with connected(options, (session_id, password)):
            return True
