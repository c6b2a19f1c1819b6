"""Whatever else writes to the service's own topics, and the operator who undoes that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delayservice.engine.ports import Place
from tests.simulation.sim_log import (
    CHECKPOINT_PARTITIONS,
    CHECKPOINTS,
    CLAIMS_PLACE,
    Written,
    checkpoint_place,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

_NONSENSE = b"nonsense"


class Strangers:
    """They write and delete; the operator writes a slice's last checkpoint again, which is the
    remedy that the service's alarm asks for.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._log = world.log

    def intrude(self) -> None:
        """Write what does not belong there, or undo that."""
        rng = self._world.rng
        slice_no = rng.randrange(self._world.plan.slices)
        choice = rng.randrange(6)
        if choice == 0:
            place = (CHECKPOINTS, rng.randrange(CHECKPOINT_PARTITIONS))
            self._write(place, rng.choice((None, b"", b"hello")), _NONSENSE)
        elif choice == 1:
            self._write(CLAIMS_PLACE, rng.choice((None, b"hello")), _NONSENSE)
        elif choice == 2:
            self._write(CLAIMS_PLACE, b"%d:stranger" % slice_no, _NONSENSE)
        elif choice == 3:
            self.undo()
        elif self._last_good(slice_no) is not None:
            other = self._last_good((slice_no + 1) % self._world.plan.slices)
            is_other = other is not None and self._world.plan.slices > 1
            value = rng.choice((None, _NONSENSE, other.value if other and is_other else b""))
            self._write(checkpoint_place(slice_no), b"%d" % slice_no, value)

    def _write(self, place: Place, key: bytes | None, value: bytes | None) -> None:
        self._world.trace(f"a stranger writes {place} {key!r} {(value or b'-')[:90]!r}")
        self._log.append(place, self._world.now_ms, (key, value, []))

    def undo(self) -> None:
        """Write the last checkpoint of each slice again that is not the newest record. The operator
        waits until the service has stopped: no transaction of it is open there.
        """
        for slice_no in range(self._world.plan.slices):
            place, good = checkpoint_place(slice_no), self._last_good(slice_no)
            newest = next(self._of(slice_no), None)
            if good is newest or good is None:
                continue
            if self._world.calm:  # in the end, what dead nodes have left open times out
                self._log.give_up_open()
            if not self._log.partition(place).pinning:
                self._world.trace(f"the operator restores the checkpoint of slice {slice_no}")
                self._log.append(place, self._world.now_ms, (good.key, good.value, good.headers))

    def _last_good(self, slice_no: int) -> Written | None:
        said = b'"slice":%d,' % slice_no
        return next((w for w in self._of(slice_no) if said in (w.value or b"")), None)

    def _of(self, slice_no: int) -> Iterator[Written]:
        """Committed records of a slice, the newest first."""
        for written in reversed(self._log.partition(checkpoint_place(slice_no)).written):
            if written.is_committed and written.key == b"%d" % slice_no:
                yield written
