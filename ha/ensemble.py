"""ZooKeeper as the nodes use it: a session, small notes, and watches that only say "look again".

kazoo, as found by reading and trying 2.11: its ``Election`` and ``Lock`` are not used (design
section 6); its connection thread ends for good on a refused login and on
errors that it does not know, without a word, so whoever owns the session has to replace it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent

from delayservice.cluster_options import ZooKeeper
from ha.kazoo_client import KazooLog, make_client
from ha.members import Members, survey_of
from ha.notes import LifeNote, NodeNote, OwnerNote, WorkerId, decode, encode, worker_name, worker_of

_CLOSE_S: Final = 1.0
_EPOCH_DIGITS_MAX: Final = 18
"""What fits into 64 bits."""

_log = structlog.get_logger(__name__)

MEMBERS: Final = -1
"""In place of a slice: the nodes, or which of them live."""
EVERYTHING: Final = -2
"""In place of a slice: all that was looked at before."""

_OVERTAKEN: Final = (NodeExistsError, NoNodeError, BadVersionError, NotEmptyError)
_CONSEQUENCES: Final = (RolledBackError, RuntimeInconsistency)
"""Of another part of the same transaction."""
_Note = TypeVar("_Note", bound=msgspec.Struct)


class EnsembleError(Exception):
    """ZooKeeper did not answer, or not in time; the same may be asked again."""


class RefusedError(EnsembleError):
    """ZooKeeper knows this user, or nobody, and does not let it do that."""


class Held(NamedTuple):
    """An owner node as it is: its note, whether this session holds it, and whether none does."""

    note: OwnerNote
    is_mine: bool
    is_nobodys: bool = False


class Ensemble:
    """One session. Any thread may call; calls block for at most a session timeout.

    Args:
        options: where it is and how to log in.
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

    # --- session -------------------------------------------------------------------------------

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
        """End the session: its nodes go at once, or with the session when nobody answers."""
        self._client.remove_listener(self._listen)
        _close_beside(self._client).join(_CLOSE_S)

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands."""
        return bool(self._client.connected)

    @property
    def is_refused(self) -> bool:
        """Whether the login was refused; kazoo does not try again then."""
        return self._is_refused

    @property
    def trouble(self) -> str:
        """Why there is no connection, as far as kazoo says; empty when it has not said."""
        return self._kazoo_log.trouble

    def take_lost(self) -> bool:
        """Whether the session was lost since this was asked last."""
        was_lost = self._lost.is_set()
        self._lost.clear()
        return was_lost

    @property
    def is_lost(self) -> bool:
        """Whether that is still to be asked."""
        return self._lost.is_set()

    @property
    def session_timeout_s(self) -> float:
        """As the ensemble granted it; as asked for, before."""
        granted_s = self._kazoo_log.session_timeout_ms / 1000
        return granted_s or float(self._options.session_timeout_s)

    @property
    def _session_id(self) -> int | None:
        client_id = self._client.client_id
        return None if client_id is None else int(client_id[0])

    # --- who is there --------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the folders that everything lies in."""
        for folder in ("nodes", "live", "slices"):
            self._ask(self._client.ensure_path_async, self._path(folder))

    def register(self, node: NodeNote, life: LifeNote) -> LifeNote | None:
        """Be known to the others. Gives the note of another living node of this name, if one is in
        the way; what a dead predecessor of this very worker left is replaced.
        """
        path = self._life_path(life)
        held = self._get(path, LifeNote)
        if held is not None:
            note, session_id = held
            if session_id == self._session_id:
                return None
            if note is None or note.worker_id != life.worker_id:
                return note or LifeNote(life.node_id, "?", life.worker)
        rival = self._namesake(life)
        if rival is not None:
            return rival
        if held is not None:
            self._delete(path)
        self.enroll(node)
        if self._create(path, encode(life), ephemeral=True):
            return None
        return LifeNote(life.node_id, "?", life.worker)

    def _namesake(self, life: LifeNote) -> LifeNote | None:
        """A worker of another node of this name, which may have more workers than that one."""
        for name in self.live():
            node_id, _ = worker_of(name) or ("", 0)
            other = self.life(name) if node_id == life.node_id else None
            if other is not None and other.instance != life.instance:
                return other
        return None

    def enroll(self, node: NodeNote) -> None:
        """Belong to the cluster, alive or not."""
        self._put(self._path("nodes", node.node_id), encode(node))

    def unregister(self, life: LifeNote) -> None:
        """Be no candidate any more; the session goes on."""
        self._delete(self._life_path(life))

    def beat(self, life: LifeNote | None) -> bool:
        """Prove that the session lives, to the ensemble's leader and not only to the nearest
        server, which may be cut off from it. False: this worker's own node is gone, or another's by
        now, whose note is not overwritten.
        """
        if life is None:
            self._ask(self._client.sync_async, self._root)
            return True
        path = self._life_path(life)
        before = self._ask(self._client.exists_async, path)
        if before is None or before.ephemeralOwner != self._session_id:
            self._ask(self._client.sync_async, self._root)  # that was the nearest server's answer
            return False
        try:
            after = self._ask(self._client.set_async, path, encode(life), before.version)
        except (NoNodeError, BadVersionError):
            return False
        return bool(after.ephemeralOwner == self._session_id)

    def nodes(self) -> list[NodeNote]:
        """Every node of the cluster; watched."""
        names = self._watched_children("nodes")
        found = (self._get(self._path("nodes", name), NodeNote) for name in names)
        return [held[0] for held in found if held is not None and held[0] is not None]

    def forget(self, node_id: str) -> None:
        """Remove a node that has left the cluster for good."""
        self._delete(self._path("nodes", node_id))

    def live(self) -> list[str]:
        """Names of all living workers; watched."""
        return self._watched_children("live")

    def life(self, name: str) -> LifeNote | None:
        """What a worker says of itself; None when it is gone."""
        held = self._get(self._path("live", name), LifeNote)
        return None if held is None else held[0]

    def survey(self, slices: Iterable[int]) -> Members:
        """The cluster as it is now, for people; any thread may ask. Nothing is watched.

        Raises:
            EnsembleError: ZooKeeper does not answer.
        """
        names = self._children("live", watch=None)
        lives = [life for name in names if (life := self.life(name)) is not None]
        listed = (self._path("nodes", name) for name in self._children("nodes", watch=None))
        notes = [held[0] for path in listed if (held := self._get(path, NodeNote)) and held[0]]
        owners = {slice_no: self._held(slice_no) for slice_no in sorted(slices)}
        return survey_of(notes, lives, {n: held and held.note for n, held in owners.items()})

    # --- owners --------------------------------------------------------------------------------

    def owner(self, slice_no: int) -> Held | None:
        """The slice's owner; watched. What no session holds would never go, and is removed
        unless somebody has made nodes below it.
        """
        path = self._owner_path(slice_no)
        if self._ask(self._client.exists_async, path, watch=self._watch) is None:
            return None
        held = self._held(slice_no)
        if held is None or not held.is_nobodys:
            return held
        _log.warning("owner_node_foreign", node=path, hint="no session holds it: made by hand?")
        self._change_owner(slice_no, lambda found: found.is_nobodys, lambda all_: all_.delete(path))
        return self._held(slice_no)

    def _held(self, slice_no: int) -> Held | None:
        held = self._get(self._owner_path(slice_no), OwnerNote)
        if held is None:
            return None
        note, session_id = held
        note = note or OwnerNote("?", "?", 0, 0)
        return Held(note, session_id == self._session_id, session_id == 0)

    def confirm(self, slice_no: int) -> bool:
        """Whether this session holds the slice's owner node, as the ensemble's leader sees it."""
        self._ask(self._client.sync_async, self._owner_path(slice_no))
        held = self._held(slice_no)
        return held is not None and held.is_mine

    def claim(self, slice_no: int, owner: OwnerNote) -> bool:
        """Become the owner, with the next epoch; False when another was faster."""
        epoch_path = self._path("slices", str(slice_no), "epoch")
        try:
            data, stat = self._ask(self._client.get_async, epoch_path)
        except NoNodeError:
            self._ask(self._client.ensure_path_async, epoch_path)
            data, stat = self._ask(self._client.get_async, epoch_path)
        won = msgspec.structs.replace(owner, epoch=1 + self._epoch(data, epoch_path))
        both = self._client.transaction()
        both.set_data(epoch_path, b"%d" % won.epoch, version=stat.version)
        both.create(self._owner_path(slice_no), encode(won), ephemeral=True)
        return self._commit(both)

    def _epoch(self, data: bytes, path: str) -> int:
        """None when somebody wrote what is no number: the checkpoint keeps the order anyway."""
        if not data or (data.isdigit() and len(data) <= _EPOCH_DIGITS_MAX):
            return int(data or b"0")
        if path not in self._unreadable:
            self._unreadable.add(path)
            _log.warning("epoch_not_readable", node=path, hint="counted from 0 again")
        return 0

    def announce(self, slice_no: int, owner: OwnerNote) -> None:
        """Write this session's owner node anew."""
        path = self._owner_path(slice_no)
        self._change_owner(slice_no, self._is_own, lambda all_: all_.set_data(path, encode(owner)))

    def resign(self, slice_no: int) -> None:
        """Remove this session's owner node, and never another's."""
        path = self._owner_path(slice_no)
        self._change_owner(slice_no, self._is_own, lambda all_: all_.delete(path))

    def evict(self, slice_no: int, worker_id: WorkerId) -> None:
        """Remove the owner node of another session of this very worker."""
        path = self._owner_path(slice_no)

        def is_old(held: Held) -> bool:
            return held.note.worker_id == worker_id and not held.is_mine

        self._change_owner(slice_no, is_old, lambda all_: all_.delete(path))

    def _change_owner(
        self, slice_no: int, is_meant: Callable[[Held], bool], change: Callable[[Any], None]
    ) -> None:
        """Change an owner node if it is the one that is meant, and still is when that is done: each
        claim sets the epoch. Versions of the node itself would not tell, for all begin at 0.
        """
        epoch_path = self._path("slices", str(slice_no), "epoch")
        epoch = self._ask(self._client.exists_async, epoch_path)
        held = self._held(slice_no)
        if held is None or not is_meant(held):
            return
        all_ = self._client.transaction()
        if epoch is not None:
            all_.check(epoch_path, epoch.version)
        change(all_)
        self._commit(all_)

    @staticmethod
    def _is_own(held: Held) -> bool:
        return held.is_mine

    # --- asking --------------------------------------------------------------------------------

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def _life_path(self, life: LifeNote) -> str:
        return self._path("live", worker_name(life.node_id, life.worker))

    def _owner_path(self, slice_no: int) -> str:
        return self._path("slices", str(slice_no), "owner")

    def _ask(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401  # kazoo has no types
        """Ask and wait for the answer. Not while disconnected: kazoo would queue it, and carry it
        out when nobody wants it any more.
        """
        if not self.is_connected:
            raise EnsembleError("ZooKeeper is out of reach")
        try:
            return call(*args, **options).get(timeout=self.session_timeout_s)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except NoAuthError as exc:
            raise RefusedError(f"ZooKeeper does not allow it: {exc!r}") from exc
        except (KazooException, self._client.handler.timeout_exception) as exc:
            raise EnsembleError(f"ZooKeeper gave no answer: {exc!r}") from exc

    def _commit(self, transaction: Any) -> bool:  # noqa: ANN401
        """All or nothing; False when something was not as it was read."""
        results = self._ask(transaction.commit_async)
        failed = [result for result in results if isinstance(result, Exception)]
        causes = [result for result in failed if not isinstance(result, _CONSEQUENCES)]
        if all(isinstance(cause, _OVERTAKEN) for cause in causes):
            return not failed
        if any(isinstance(cause, NoAuthError) for cause in causes):
            raise RefusedError(f"ZooKeeper does not allow it: {causes[0]!r}") from causes[0]
        raise EnsembleError(f"ZooKeeper did not carry it out: {causes[0]!r}") from causes[0]

    def _watched_children(self, folder: str) -> list[str]:
        return self._children(folder, self._watch)

    def _children(self, folder: str, watch: Callable[[WatchedEvent], None] | None) -> list[str]:
        asked = self._client.get_children_async
        try:
            return list(self._ask(asked, self._path(folder), watch=watch))
        except NoNodeError as exc:
            raise EnsembleError(f"somebody has removed {self._path(folder)}") from exc

    def _get(self, path: str, kind: type[_Note]) -> tuple[_Note | None, int] | None:
        """A note and the session that holds it; None when there is no such node."""
        try:
            data, stat = self._ask(self._client.get_async, path)
        except NoNodeError:
            return None
        return decode(data, kind), int(stat.ephemeralOwner)

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        try:
            self._ask(self._client.create_async, path, data, ephemeral=ephemeral)
        except NodeExistsError:
            return False
        except NoNodeError as exc:
            raise EnsembleError(f"somebody has removed what {path} lay in") from exc
        return True

    def _put(self, path: str, data: bytes) -> None:
        if not self._create(path, data):
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


def _close_beside(client: KazooClient) -> threading.Thread:
    """Kazoo waits for ten seconds where nobody answers."""
    closing = threading.Thread(target=_close, args=(client,), name="zookeeper-close", daemon=True)
    closing.start()
    return closing


def _close(client: KazooClient) -> None:
    with suppress(KazooException):
        client.stop()
        client.close()
