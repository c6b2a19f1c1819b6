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
from delayservice.replicas.commands import Report
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests
from delayservice.store.base import Store

if TYPE_CHECKING:
    from tests.simulation.node import Node

_MINUTE_MS = 50
_HOUR_MS = 4 * _MINUTE_MS
_SCAN_EVERY_MS = 400

# Number of records and hash, by the start of the hour.
Hours = dict[int, tuple[int, str]]


@contextmanager
def short_hours() -> Iterator[None]:
    """Hours that fit a schedule's few seconds, and scans of a few records a turn."""
    with ExitStack() as patches:
        for name, value in {"MINUTE_MS": _MINUTE_MS, "HOUR_MS": _HOUR_MS}.items():
            patches.enter_context(patch(f"delayservice.replicas.digest.{name}", value))
        patches.enter_context(patch("delayservice.store.digesting.SCAN_ROWS", 3))
        yield


class DigestBook:
    """The digest topic, and a judge of it.

    Attributes:
        compared: pairs of states that were compared.
        hours: hours that were in both.
    """

    def __init__(self) -> None:
        self.compared = 0
        self.hours = 0
        self.broken: str | None = None
        self._digests: dict[tuple[str, int], SliceDigests] = {}
        self._hours: dict[tuple[str, Place, str], Hours] = {}
        self._states: dict[tuple[Place, int], list[tuple[dict[str, Any], Hours]]] = {}

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
        )
        self._digests[node.name, slice_no] = digests
        return CopyKeeper(digests, self.report, node.clock)

    def keep(self, node: Node, place: Place, store: Store) -> Store:
        """``store`` with a digest."""
        topic, slice_no = place
        return self._digests[node.name, slice_no].keep(
            topic, node.world.log.topics[topic].topic_id, store
        )

    def report(self, report: Report) -> None:
        """Nobody asks anything here."""
        raise AssertionError(report)

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
        hours = self._hours.setdefault((node, place, said["life"]), {})
        hours[hour_ms] = (said["count"], said["hash"])

    # --- the judge -----------------------------------------------------------------------------

    def _take_cut(self, cut: dict[str, Any]) -> None:
        place = (cut["topic"], cut["partition"])
        state = dict(self._hours.get((cut["node"], place, cut["life"]), {}))
        total = sum(int(hashed, 16) for _, hashed in state.values()) % 2**64
        if (sum(count for count, _ in state.values()), total) != (
            cut["count"],
            int(cut["hash"], 16),
        ):
            self.broken = f"the hours of {cut['node']} do not come to its cut {cut['cut']}: {cut}"
        if any(count < 1 for count, _ in state.values()) and not cut["damaged"]:
            self.broken = f"an hour of {cut['node']} has {state}"
        others = self._states.setdefault((place, cut["cut"]), [])
        for other, theirs in others:
            self._compare(cut, state, other, theirs)
        others.append((cut, state))

    def _compare(
        self, one: dict[str, Any], mine: Hours, other: dict[str, Any], theirs: Hours
    ) -> None:
        since = max(one["from_ms"], other["from_ms"])
        if one["from_ms"] == other["from_ms"]:
            since -= since % _HOUR_MS
        damaged = [*one["damaged"], *other["damaged"]]

        def is_judged(start: int) -> bool:
            return start >= since and not any(
                d["start_ms"] < start + _HOUR_MS and start < d["stop_ms"] for d in damaged
            )

        for start in filter(is_judged, mine.keys() | theirs.keys()):
            self.hours += 1
            if mine.get(start) != theirs.get(start):
                self.broken = (
                    f"cut {one['cut']}, hour {start}: {one['node']} (life {one['life']}) has "
                    f"{mine.get(start)}, {other['node']} (life {other['life']}) {theirs.get(start)}"
                )
        self.compared += 1
