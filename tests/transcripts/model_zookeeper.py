"""ZooKeeper as far as elections can tell: sessions that expire, nodes that go with them, watches
that come late. ``Link`` stands where ``ha.ensemble.Ensemble`` does.

Requests are answered at once or not at all; that another was faster shows through late watches. A
server that is down forgets nothing, and gives every session its whole timeout when it is back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ha.notes import LifeNote, NodeNote, OwnerNote, SliceOwner, WorkerId, worker_name
from ha.pipeline import EnsembleError
from ha.zookeeper_session import EVERYTHING, MEMBERS
from tests.transcripts.events import Events

TICK_S = 0.5
SESSION_S = 6.0
_NOTICED_S = SESSION_S * 2 / 3
"""When kazoo finds that a server has fallen silent."""


class _Life(NamedTuple):
    note: LifeNote
    session: int


class _Owner(NamedTuple):
    note: OwnerNote
    session: int


@dataclass(slots=True)
class ModelZooKeeper:
    """The ensemble as a whole."""

    events: Events
    is_running: bool = True
    nodes: dict[str, NodeNote] = field(default_factory=dict)
    lives: dict[str, _Life] = field(default_factory=dict)
    owners: dict[int, _Owner] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    silent_since_s: dict[int, float | None] = field(default_factory=dict)
    """Sessions that live, by id."""
    sessions: int = 0
    resigning: Callable[[str, int], None] = lambda *_: None
    """Called with the instance of the owner, before its node goes."""

    def opened(self) -> int:
        """A new session."""
        self.sessions += 1
        self.silent_since_s[self.sessions] = None
        return self.sessions

    def heard(self, session: int) -> None:
        """Its client is there."""
        if session in self.silent_since_s:
            self.silent_since_s[session] = None

    def unheard(self, session: int) -> None:
        """Its client has fallen silent: the session goes when that lasts."""
        if self.silent_since_s.get(session, 0.0) is not None:
            return
        since_s = self.silent_since_s[session] = self.events.now_s
        ends_s = math.ceil((since_s + SESSION_S) / TICK_S) * TICK_S
        self.events.at(ends_s, lambda: self._expire(session, since_s))

    def _expire(self, session: int, since_s: float) -> None:
        if self.is_running and self.silent_since_s.get(session) == since_s:
            self.events.say("zookeeper", f"session {session} expires")
            self.ended(session)

    def ended(self, session: int) -> None:
        """The session and all that was its own are gone."""
        self.silent_since_s.pop(session, None)
        for name in [name for name, life in self.lives.items() if life.session == session]:
            del self.lives[name]
            self.changed(MEMBERS)
        for slice_no in [n for n, owner in self.owners.items() if owner.session == session]:
            self.vacate(slice_no)

    def vacate(self, slice_no: int) -> None:
        """The owner node of a slice goes."""
        if self.owners.pop(slice_no, None) is not None:
            self.changed(slice_no)

    def changed(self, what: int) -> None:
        """Tell all who are there, a little later."""
        for link in self.links:
            link.notify(what)

    def stop(self) -> None:
        """All servers end in order: every client knows at once."""
        self.is_running = False
        for session in self.silent_since_s:
            self.silent_since_s[session] = None
        for link in self.links:
            link.drop()

    def start(self) -> None:
        """All servers are back."""
        self.is_running = True
        for session in self.silent_since_s:
            self.silent_since_s[session] = None
            self.unheard(session)
        for link in self.links:
            link.retry()


class Link:
    """One client. ``is_alive``: its process runs; ``is_cut``: its network does not."""

    def __init__(self, zookeeper: ModelZooKeeper, changed: Callable[[int], None]) -> None:
        self._zookeeper = zookeeper
        self._changed = changed
        self.session = self
        """Connection and notes in one, as ``Ensemble`` keeps them apart."""
        self._session: int | None = None
        self._is_lost = False
        self.is_connected = False
        self.is_alive = True
        self.is_cut = False
        self.is_refused = False
        self.is_failing: Callable[[], bool] = lambda: False
        """Whether a request gets no answer, although the connection stands."""
        self._held_back: list[int] = []
        self.trouble = ""
        self.session_timeout_s = SESSION_S
        zookeeper.links.append(self)

    # --- the network and kazoo -----------------------------------------------------------------

    @property
    def _is_reachable(self) -> bool:
        return self._zookeeper.is_running and not self.is_cut and self.is_alive

    def notify(self, what: int) -> None:
        """A watch fires; lost if the connection is gone before it arrives."""
        session = self._session
        if self.is_cut:
            self._held_back.append(what)
        elif self.is_connected:
            delay_s = self._zookeeper.events.delay_s("watch")
            self._zookeeper.events.after(delay_s, lambda: self._arrived(what, session))

    def _arrived(self, what: int, session: int | None) -> None:
        if self.is_connected and self._session == session:
            self._changed(what)

    def drop(self) -> None:
        """Kazoo knows that the connection is gone."""
        if self.is_connected:
            self.is_connected = False
            self.trouble = "connection lost"
            self._changed(EVERYTHING)
        self.retry()

    def retry(self) -> None:
        """Kazoo tries again before long."""
        self._zookeeper.events.after(self._zookeeper.events.delay_s("connect"), self._connect)

    def _connect(self) -> None:
        if self.is_connected or not self._is_reachable:
            return
        zookeeper = self._zookeeper
        if self._session is None:
            self._session = zookeeper.opened()
        elif self._session not in zookeeper.silent_since_s:
            self._is_lost = True
            self._session = zookeeper.opened()
        zookeeper.heard(self._session)
        self.is_connected = True
        self.trouble = ""
        self._changed(EVERYTHING)

    def fall_silent(self) -> None:
        """The process is frozen or dead, or its network cut."""
        if self._session is not None:
            self._zookeeper.unheard(self._session)
        if self.is_alive:
            self._zookeeper.events.after(_NOTICED_S, self._notice)

    def _notice(self) -> None:
        if not self._is_reachable and self.is_alive:
            self.drop()

    def speak_again(self) -> None:
        """Go on after a thaw or a mended network: an expired session is told at once, another goes
        on. A process that is still cut off stays out of touch.
        """
        held_back, self._held_back = self._held_back, []
        if not self.is_alive:
            return
        if self.is_cut:
            self.fall_silent()
        elif self._session in self._zookeeper.silent_since_s and self._session is not None:
            self._zookeeper.heard(self._session)
            for what in held_back:  # sent again, if the connection has survived
                self.notify(what)
        elif self.is_connected:
            self._zookeeper.events.after(self._zookeeper.events.delay_s("watch"), self.drop)
        self.retry()

    # --- as the ensemble does it ---------------------------------------------------------------

    def connect(self) -> None:
        """Begin."""
        self.retry()

    def replace(self) -> None:
        """Another session; the old one is left to expire."""
        if self._session is not None:
            self._zookeeper.unheard(self._session)
        self._session = None
        self._is_lost = True
        self.is_connected = False
        self.retry()

    def close(self) -> None:
        """Leave, and take everything along."""
        if self._session is not None and self._is_reachable:
            self._zookeeper.ended(self._session)
        self._zookeeper.links.remove(self)
        self.is_connected = self.is_alive = False

    def end_session(self) -> None:
        """As the supervisor of a dead worker does."""
        if self._session is not None and self._zookeeper.is_running:
            self._zookeeper.ended(self._session)

    def take_lost(self) -> bool:
        was_lost, self._is_lost = self._is_lost, False
        return was_lost

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def _ask(self) -> int:
        """The session that asks."""
        self._zookeeper.events.check()
        is_known = self._session in self._zookeeper.silent_since_s
        is_answered = self.is_connected and self._is_reachable and is_known
        if not is_answered or self._session is None or self.is_failing():
            raise EnsembleError("no answer")
        return self._session

    def prepare(self) -> None:
        """Nothing to make."""
        self._ask()

    def register(self, node: NodeNote, life: LifeNote) -> LifeNote | None:
        session, name = self._ask(), worker_name(life.node_id, life.worker)
        held = self._zookeeper.lives.get(name)
        if held is not None and held.session == session:
            return None
        if held is not None and held.note.worker_id != life.worker_id:
            return held.note
        for other in self._zookeeper.lives.values():
            if other.note.node_id == life.node_id and other.note.instance != life.instance:
                return other.note
        self._zookeeper.nodes[node.node_id] = node
        self._zookeeper.lives[name] = _Life(life, session)
        self._zookeeper.changed(MEMBERS)
        return None

    def enroll(self, node: NodeNote) -> None:
        self._ask()
        self._zookeeper.nodes[node.node_id] = node
        self._zookeeper.changed(MEMBERS)

    def unregister(self, life: LifeNote) -> None:
        self._ask()
        if self._zookeeper.lives.pop(worker_name(life.node_id, life.worker), None) is not None:
            self._zookeeper.changed(MEMBERS)

    def beat(self, life: LifeNote | None) -> bool:
        session = self._ask()
        if life is None:
            return True
        name = worker_name(life.node_id, life.worker)
        held = self._zookeeper.lives.get(name)
        if held is None or held.session != session:
            return False
        self._zookeeper.lives[name] = _Life(life, session)
        return True

    def nodes(self) -> list[NodeNote]:
        self._ask()
        return list(self._zookeeper.nodes.values())

    def pin(self) -> None:
        """Nobody pins anything here."""
        self._ask()

    def forget(self, node_id: str) -> None:
        self._ask()
        if self._zookeeper.nodes.pop(node_id, None) is not None:
            self._zookeeper.changed(MEMBERS)

    def live(self) -> list[str]:
        self._ask()
        return list(self._zookeeper.lives)

    def lives(self, names: Iterable[str]) -> dict[str, LifeNote]:
        self._ask()
        lives = self._zookeeper.lives
        return {name: lives[name].note for name in names if name in lives}

    def owners(self, slice_nos: Iterable[int]) -> Iterator[tuple[int, SliceOwner]]:
        session = self._ask()
        for slice_no in slice_nos:
            held = self._zookeeper.owners.get(slice_no)
            note, holder = (None, None) if held is None else (held.note, held.session)
            yield slice_no, SliceOwner(note, holder == session)

    def confirm_all(self, slice_nos: Iterable[int]) -> Iterator[int]:
        held = dict(self.owners(slice_nos))
        yield from (n for n, one in held.items() if one.is_mine)

    def claim_all(self, slice_nos: Iterable[int], owner: OwnerNote) -> frozenset[int]:
        return frozenset(n for n in slice_nos if self._claim(n, owner))

    def _claim(self, slice_no: int, owner: OwnerNote) -> bool:
        session, zookeeper = self._ask(), self._zookeeper
        if slice_no in zookeeper.owners:
            return False
        epoch = zookeeper.epochs[slice_no] = zookeeper.epochs.get(slice_no, 0) + 1
        note = msgspec.structs.replace(owner, epoch=epoch)
        zookeeper.owners[slice_no] = _Owner(note, session)
        zookeeper.changed(slice_no)
        return True

    def announce_all(self, heirs: Mapping[int, str]) -> None:
        for slice_no in self.confirm_all(heirs):
            note = msgspec.structs.replace(
                self._zookeeper.owners[slice_no].note, heir=heirs[slice_no]
            )
            self._zookeeper.owners[slice_no] = _Owner(note, self._ask())
            self._zookeeper.changed(slice_no)

    def resign_all(self, slice_nos: Iterable[int]) -> None:
        for slice_no in self.confirm_all(slice_nos):
            self._zookeeper.resigning(self._zookeeper.owners[slice_no].note.instance, slice_no)
            self._zookeeper.vacate(slice_no)

    def evict_all(self, slice_nos: Iterable[int], worker_id: WorkerId) -> None:
        for slice_no, held in self.owners(slice_nos):
            if held.owner is not None and held.owner.worker_id == worker_id:
                self._zookeeper.vacate(slice_no)
