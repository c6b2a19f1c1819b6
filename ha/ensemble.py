"""Reads and writes the notes of all nodes in ZooKeeper. The *owner node* of a slice is the
ZooKeeper node with its ``OwnerNote``; the session that created it holds it. A watch only reports
that something is to be read again.

kazoo 2.11: its ``Election`` and ``Lock`` are not used (design section 6). Its connection thread
ends for good, without a log line, on a refused login and on errors that it does not know, so the
owner of the session must replace the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import structlog
from kazoo.exceptions import BadVersionError, NoNodeError

from delayservice.config.cluster import ZooKeeper
from ha.members import Members, survey_of
from ha.notes import (
    LifeNote,
    NodeNote,
    OwnerNote,
    PinNote,
    SliceOwner,
    WorkerId,
    encode,
    worker_name,
    worker_of,
)
from ha.pipeline import EnsembleError, Pipeline
from ha.zookeeper_session import Session, each, still_there

# Largest number of decimal digits that is sure to fit into 64 bits.
_EPOCH_DIGITS_MAX: Final = 18

_log = structlog.get_logger(__name__)


class Ensemble:
    """Reader and writer of the notes (small JSON texts) of all nodes in ZooKeeper, in one session.
    Any thread may call. A call fails when no answer has come for a session timeout.

    Requests about many slices are sent without waiting for each answer. If one fails, the others
    are still carried out; its error is raised after them.
    """

    def __init__(
        self,
        options: ZooKeeper,
        # Called, from a thread of kazoo's, with what to read again: the number of a slice,
        # ``MEMBERS``, or ``EVERYTHING`` when the connection comes or goes. Must not block.
        changed: Callable[[int], None],
        # Called in the same way with id and password of each session.
        noted: Callable[[int, bytes], None] = lambda *_: None,
    ) -> None:
        self.session = Session(options, changed, noted)
        self._unreadable: set[str] = set()

    def prepare(self) -> None:
        for folder in ("nodes", "live", "slices"):
            path = self.session.path(folder)
            with still_there(path):
                self.session.ask(self.session.client.ensure_path_async, path)

    def register(self, node: NodeNote, life: LifeNote) -> LifeNote | None:
        """Write the note of a live worker, and that of its node, and return None. If another living
        node has the same name, write nothing, and return a note of that node. A note that an ended
        session of this worker left is replaced.
        """
        path = self._life_path(life)
        with self.session.batch() as batch:
            held = self.session.read(batch, {path: path}, LifeNote).get(path)
        if held is not None:
            note, session_id = held
            if session_id == self.session.session_id:
                return None
            if note is None or note.worker_id != life.worker_id:
                return note or LifeNote(life.node_id, "?", life.worker)
        rival = self._namesake(life)
        if rival is not None:
            return rival
        if held is not None:
            self.session.delete(path)
        self.enroll(node)
        if self.session.create(path, encode(life), ephemeral=True):
            return None
        return LifeNote(life.node_id, "?", life.worker)

    def _namesake(self, life: LifeNote) -> LifeNote | None:
        names = [name for name in self.live() if (worker_of(name) or ("",))[0] == life.node_id]
        others = self.lives(names).values()
        return next((other for other in others if other.instance != life.instance), None)

    def enroll(self, node: NodeNote) -> None:
        self.session.put(self.session.path("nodes", node.node_id), encode(node))

    def unregister(self, life: LifeNote) -> None:
        # The session goes on.
        self.session.delete(self._life_path(life))

    def beat(self, life: LifeNote | None) -> bool:
        """Write a live worker's note again, so that ZooKeeper's leader has to answer; the nearest
        server may be cut off from the leader. Return False, and write nothing, if the note is gone
        or another session's. ``life`` None: only wait for the answer, and return True.
        """
        if life is None:
            self.session.sync()
            return True
        session, path = self.session, self._life_path(life)
        before = session.ask(session.client.exists_async, path)
        if before is None or before.ephemeralOwner != session.session_id:
            session.sync()  # that was the nearest server's answer
            return False
        try:
            after = session.ask(session.client.set_async, path, encode(life), before.version)
        except (NoNodeError, BadVersionError):
            return False
        return bool(after.ephemeralOwner == session.session_id)

    def nodes(self) -> list[NodeNote]:
        with self.session.batch() as batch:
            return self._nodes(batch, self.session.children("nodes"))

    def _nodes(self, batch: Pipeline, names: Iterable[str]) -> list[NodeNote]:
        paths = {name: self.session.path("nodes", name) for name in names}
        found = self.session.read(batch, paths, NodeNote)
        return [held[0] for held in found.values() if held is not None and held[0] is not None]

    def pin(self) -> PinNote | None:
        # Without a reason if the note is unreadable.
        path = self.session.path("pinned")
        session = self.session
        if session.ask(session.client.exists_async, path, watch=session.watch) is None:
            return None
        with self.session.batch() as batch:
            held = self.session.read(batch, {path: path}, PinNote)[path]
        return None if held is None else held[0] or PinNote()

    def forget(self, node_id: str) -> None:
        self.session.delete(self.session.path("nodes", node_id))

    def live(self) -> list[str]:
        return self.session.children("live")

    def lives(self, names: Iterable[str]) -> dict[str, LifeNote]:
        with self.session.batch() as batch:
            return self._lives(batch, names)

    def _lives(self, batch: Pipeline, names: Iterable[str]) -> dict[str, LifeNote]:
        paths = {name: self.session.path("live", name) for name in names}
        found = self.session.read(batch, paths, LifeNote)
        return {name: held[0] for name, held in found.items() if held and held[0]}

    def survey(self, slices: Iterable[int]) -> Members:
        with self.session.batch() as batch:
            lives = self._lives(batch, self.session.children("live", is_watched=False))
            notes = self._nodes(batch, self.session.children("nodes", is_watched=False))
            owners = self._held(batch, sorted(slices))
        return survey_of(notes, lives.values(), {n: held.owner for n, held in owners.items()})

    def owners(self, slice_nos: Iterable[int]) -> Iterator[tuple[int, SliceOwner]]:
        """Yield each slice with its owner, and watch for that node's next
        change. An owner node without a session would stay for ever; it is removed unless there are
        nodes below it. Slices that could not be read are left out, and the error is raised at the
        end.
        """
        with self.session.batch() as batch:
            yield from self._watched_owners(batch, slice_nos).items()

    def _watched_owners(self, batch: Pipeline, slice_nos: Iterable[int]) -> dict[int, SliceOwner]:
        exists, watch = self.session.client.exists_async, self.session.watch
        held = self._held(batch, slice_nos, watch=watch)
        vacant = {n: self._owner_path(n) for n, found in held.items() if found.owner is None}
        # The creation of a node that does not exist is watched by another request.
        stats = batch.ask_all(each(exists, vacant, watch=watch))
        created = {n for n, stat in stats.items() if stat is not None}
        unwatched = vacant.keys() - stats.keys()
        held = {n: found for n, found in held.items() if n not in unwatched}
        foreign = {n for n, found in held.items() if found.is_nobodys}
        for slice_no in foreign:
            path = self._owner_path(slice_no)
            _log.warning(
                "owner_node_foreign",
                node=path,
                hint="deleted, as no session holds it; was it made by hand?",
            )
        self._change_owners(batch, foreign, lambda found: found.is_nobodys, self._delete_owner)
        return held | self._held(batch, created | foreign)

    def _held(
        self, batch: Pipeline, slice_nos: Iterable[int], **options: object
    ) -> dict[int, SliceOwner]:
        paths = {slice_no: self._owner_path(slice_no) for slice_no in slice_nos}
        found = self.session.read(batch, paths, OwnerNote, **options)
        unreadable, mine = OwnerNote("?", "?", 0, 0), self.session.session_id
        return {
            n: SliceOwner()
            if held is None
            else SliceOwner(held[0] or unreadable, held[1] == mine, held[1] == 0)
            for n, held in found.items()
        }

    def confirm_all(self, slice_nos: Iterable[int]) -> Iterator[int]:
        """Yield the slices whose owner node this worker's session holds, as ZooKeeper's leader sees
        it. Slices that could not be read are left out, and the error is raised at the end.
        """
        self.session.sync("slices")
        with self.session.batch() as batch:
            found = self._held(batch, slice_nos)
            yield from (n for n, held in found.items() if held.is_mine)

    def claim_all(self, slice_nos: Iterable[int], owner: OwnerNote) -> frozenset[int]:
        """Claim slices for the worker that ``owner`` names, each with the slice's next epoch;
        return the slices that were won. Other workers were faster for the rest.
        """
        with self.session.batch() as batch:
            epochs = self._epochs(batch, slice_nos)
            claims = {n: self._claim(n, owner, *found) for n, found in epochs.items()}
            return batch.commit_all(claims)

    def _epochs(self, batch: Pipeline, slice_nos: Iterable[int]) -> dict[int, tuple[bytes, int]]:
        client = self.session.client
        paths = {slice_no: self._epoch_path(slice_no) for slice_no in slice_nos}
        found = batch.ask_all(each(client.get_async, paths))
        missing = {n: paths[n] for n, read in found.items() if isinstance(read, NoNodeError)}
        folders = {n: path.removesuffix("/epoch") for n, path in missing.items()}
        batch.ask_all(each(client.create_async, folders))
        made = batch.ask_all(each(client.create_async, missing))
        if any(isinstance(answer, NoNodeError) for answer in made.values()):
            raise EnsembleError(f"{self.session.path('slices')} was removed by hand")
        found |= batch.ask_all(each(client.get_async, missing))
        there = {n: read for n, read in found.items() if not isinstance(read, NoNodeError)}
        return {n: (data, stat.version) for n, (data, stat) in there.items()}

    def _claim(self, slice_no: int, owner: OwnerNote, data: bytes, version: int) -> Any:  # noqa: ANN401  # kazoo has no types
        """Return a transaction, not sent yet, that raises a slice's epoch and creates its owner
        node. ``data`` and ``version``: content and version of its epoch node.
        """
        path = self._epoch_path(slice_no)
        won = msgspec.structs.replace(owner, epoch=1 + self._epoch(data, path))
        both = self.session.client.transaction()
        both.set_data(path, b"%d" % won.epoch, version=version)
        both.create(self._owner_path(slice_no), encode(won), ephemeral=True)
        return both

    def _epoch(self, data: bytes, path: str) -> int:
        # 0 if it is not a number, as the checkpoints keep epochs in order anyway.
        if not data or (data.isdigit() and len(data) <= _EPOCH_DIGITS_MAX):
            return int(data or b"0")
        if path not in self._unreadable:
            self._unreadable.add(path)
            _log.warning("epoch_not_readable", node=path, hint="the epoch is counted from 0 again")
        return 0

    def announce_all(self, heirs: Mapping[int, str]) -> None:
        # Only in owner nodes that this session holds.

        def write(slice_no: int, owner: OwnerNote, transaction: Any) -> None:  # noqa: ANN401
            note = msgspec.structs.replace(owner, heir=heirs[slice_no])
            transaction.set_data(self._owner_path(slice_no), encode(note))

        with self.session.batch() as batch:
            self._change_owners(batch, heirs, lambda held: held.is_mine, write)

    def resign_all(self, slice_nos: Iterable[int]) -> None:
        with self.session.batch() as batch:
            self._change_owners(batch, slice_nos, lambda held: held.is_mine, self._delete_owner)

    def evict_all(self, slice_nos: Iterable[int], worker_id: WorkerId) -> None:
        # Only those that an earlier session of the worker holds.

        def is_old(held: SliceOwner) -> bool:
            is_same = held.owner is not None and held.owner.worker_id == worker_id
            return is_same and not held.is_mine

        with self.session.batch() as batch:
            self._change_owners(batch, slice_nos, is_old, self._delete_owner)

    def _delete_owner(self, slice_no: int, _owner: OwnerNote, transaction: Any) -> None:  # noqa: ANN401
        transaction.delete(self._owner_path(slice_no))

    def _change_owners(
        self,
        batch: Pipeline,
        slice_nos: Iterable[int],
        is_meant: Callable[[SliceOwner], bool],
        change: Callable[[int, OwnerNote, Any], None],
    ) -> None:
        """Change each owner node for which ``is_meant`` holds, unless the slice is claimed
        meanwhile. The epoch node's version shows that; the owner node's version can't, for it
        begins at 0 in each new node. ``change`` adds the change of a slice to a transaction.
        """
        # The epochs first: then the check of the epoch detects a claim in between.
        paths = {slice_no: self._epoch_path(slice_no) for slice_no in slice_nos}
        epochs = batch.ask_all(each(self.session.client.exists_async, paths))
        changes = {}
        for slice_no, held in self._held(batch, epochs).items():
            if held.owner is None or not is_meant(held):
                continue
            changes[slice_no] = self.session.client.transaction()
            if epochs[slice_no] is not None:
                changes[slice_no].check(paths[slice_no], epochs[slice_no].version)
            change(slice_no, held.owner, changes[slice_no])
        batch.commit_all(changes)

    def _life_path(self, life: LifeNote) -> str:
        return self.session.path("live", worker_name(life.node_id, life.worker))

    def _epoch_path(self, slice_no: int) -> str:
        return self.session.path("slices", str(slice_no), "epoch")

    def _owner_path(self, slice_no: int) -> str:
        return self.session.path("slices", str(slice_no), "owner")
