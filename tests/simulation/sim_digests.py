"""What the nodes of a schedule publish of their copies, and whether it agrees.

A copy that was kept up since it was empty, one that was read from the disk after a crash and one of
another node come to their sums in different ways, and must come to the same.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from delayservice.engine.ports import Place
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests
from delayservice.store.base import Store

if TYPE_CHECKING:
    from tests.simulation.node import Node

_SLOT_MS = 50
_SLOTS = 4
_SCAN_EVERY_MS = 400

Slots = dict[int, tuple[int, str]]


@contextmanager
def short_slots() -> Iterator[None]:
    """Slots that fit a schedule's few seconds, and scans of a few records a turn."""
    with ExitStack() as patches:
        for name, value in {
            "SLOT_MS": _SLOT_MS,
            "SLOTS": _SLOTS,
            "HOUR_MS": _SLOT_MS * _SLOTS,
        }.items():
            patches.enter_context(patch(f"delayservice.replicas.digest.{name}", value))
        patches.enter_context(patch("delayservice.replicas.digest_rows.SLOT_MS", _SLOT_MS))
        patches.enter_context(patch("delayservice.store.digesting.SCAN_ROWS", 3))
        yield


class DigestBook:
    """The digest topic, and a judge of it.

    Attributes:
        compared: pairs of states that were compared.
        slots: slots that were in both.
    """

    def __init__(self) -> None:
        self.compared = 0
        self.slots = 0
        self.broken: str | None = None
        self._digests: dict[tuple[str, int], SliceDigests] = {}
        self._hours: dict[tuple[str, Place, str], dict[int, Slots]] = {}
        self._states: dict[tuple[Place, int], list[tuple[dict[str, Any], Slots]]] = {}

    # --- a node's side -------------------------------------------------------------------------

    def keeper(self, node: Node, slice_no: int) -> CopyKeeper:
        """For a slice in one life of a node."""
        digests = SliceDigests(
            slice_no,
            node.name,
            checkpoints=node.checkpoints,
            clock=node.clock,
            write=self.write,
            scanning=threading.Lock(),
            scan_interval_ms=_SCAN_EVERY_MS,
            store_kind="simulated",
        )
        self._digests[node.name, slice_no] = digests
        return CopyKeeper(digests, self.answer, node.name, node.clock)

    def keep(self, node: Node, place: Place, store: Store) -> Store:
        """``store`` with a digest."""
        topic, slice_no = place
        return self._digests[node.name, slice_no].keep(
            topic, node.world.log.topics[topic].topic_id, store
        )

    def answer(self, plan: str, value: bytes) -> None:
        """Nobody asks anything here."""
        raise AssertionError((plan, value))

    def write(self, row: tuple[bytes, bytes | None], on_lost: Callable[[], None]) -> None:
        """Take a row as Spark would read it."""
        del on_lost
        key, value = row
        kind, node, topic, *rest = key.decode().split("/")
        said = json.loads(value) if value is not None else None
        if kind == "h":
            self._take_hour(node, (topic, int(rest[0])), int(rest[1]), said)
        elif said is not None and not said["behind"]:
            self._take_cut(said)

    def _take_hour(
        self, node: str, place: Place, hour_ms: int, said: dict[str, Any] | None
    ) -> None:
        if said is None:
            for (whose, what, _), hours in self._hours.items():
                if (whose, what) == (node, place):
                    hours.pop(hour_ms, None)
            return
        self._hours.setdefault((node, place, said["life"]), {})[hour_ms] = {
            hour_ms + index * _SLOT_MS: (count, hashed) for index, count, hashed in said["slots"]
        }

    # --- the judge -----------------------------------------------------------------------------

    def _take_cut(self, cut: dict[str, Any]) -> None:
        place = (cut["topic"], cut["partition"])
        hours = self._hours.get((cut["node"], place, cut["life"]), {})
        state = {start: slot for slots in hours.values() for start, slot in slots.items()}
        total = sum(int(hashed, 16) for _, hashed in state.values()) % 2**64
        if (sum(count for count, _ in state.values()), total) != (
            cut["count"],
            int(cut["hash"], 16),
        ):
            self.broken = f"the hours of {cut['node']} do not come to its cut {cut['cut']}: {cut}"
        if any(count < 1 for count, _ in state.values()) and not cut["damaged"]:
            self.broken = f"a slot of {cut['node']} has {state}"
        others = self._states.setdefault((place, cut["cut"]), [])
        for other, theirs in others:
            self._compare(cut, state, other, theirs)
        others.append((cut, state))

    def _compare(
        self, one: dict[str, Any], mine: Slots, other: dict[str, Any], theirs: Slots
    ) -> None:
        since = max(one["from_ms"], other["from_ms"])
        damaged = [*one["damaged"], *other["damaged"]]

        def is_judged(start: int) -> bool:
            return start >= since and not any(
                d["start_ms"] < start + _SLOT_MS and start < d["stop_ms"] for d in damaged
            )

        for start in filter(is_judged, mine.keys() | theirs.keys()):
            self.slots += 1
            if mine.get(start) != theirs.get(start):
                self.broken = (
                    f"cut {one['cut']}, slot {start}: {one['node']} (life {one['life']}) has "
                    f"{mine.get(start)}, {other['node']} (life {other['life']}) {theirs.get(start)}"
                )
        self.compared += 1
