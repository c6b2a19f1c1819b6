"""A lane of one shard as most tests of lanes want it, and a source that is asked for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from delayservice.contract.cron import cron_time
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.outcome import Routes
from delayservice.engine.ports import Bounds, Place, Source
from delayservice.slices.lane import Lane
from delayservice.slices.log_window import LogWindow
from delayservice.store.base import Store
from tests.unit.known_targets import KnownTargets, any_target

TOPIC = "delay_topic_any"


class QuietSource:
    """A source that notes what it is asked for: the tests hand over what is read. ``seeks``: offset
    and last record read of each; ``position``: -1 while nothing is read.
    """

    def __init__(self) -> None:
        self.position = -1
        self.seeks: list[tuple[int, LastRead]] = []
        self.paused: set[Place] = set()

    def seek(self, _place: Place, offset: int, last: LastRead = NOTHING_READ) -> None:
        self.position = offset
        self.seeks.append((offset, last))

    def drop(self, _place: Place) -> None:
        self.position = -1

    def pause(self, place: Place) -> None:
        self.paused.add(place)

    def resume(self, place: Place) -> None:
        self.paused.discard(place)


def routes_of(window_ms: int = 3_600_000, *parks_ms: int, **more: Any) -> Routes:
    """Routes with this roll window and these delays of parked records."""
    given = {"secret": b"secret", "cron_time": cron_time, "allowlist": any_target, **more}
    secret = given.pop("secret")
    return Routes("letters", "outcomes", secret, window_ms, 0, parks_ms, **given)


def lane_of(store: Store, source: object, routes: Routes, place: Place = (TOPIC, 0)) -> Lane:
    return Lane(*place, "id", store, cast("Source", source), routes, KnownTargets())


def log_moved(lane: Lane, bounds: Bounds, *, is_truncated: bool | None = None) -> None:
    """What the loop does when a log has moved: an owner releases its slice with a last checkpoint,
    fits its store to the log as a replica, and takes over what the checkpoint says.
    """
    last, was_owned = lane.checkpoint(), lane.shard.owned
    if was_owned:
        lane.committed()
        lane.step_down()
    lane.refit(bounds, is_truncated=is_truncated)
    if was_owned:
        lane.take_over(last.cursor, bounds, last.last_read, last.lost)


def read_again(lane: Lane) -> None:
    """Read at once what a lane wants of its log, which a helper thread does otherwise."""
    while lane.log_wanted is not None:
        batch = lane.log_answered(lane.log.read(lane.log_wanted))
        if batch is not None:
            lane.ingest(batch)


def window_of(
    records_max: int = 100,
    bytes_max: int = 100_000,
    park_topic: Callable[[], str | None] = lambda: None,
) -> LogWindow:
    """The store of a level topic, whose records are dead-lettered when their targets fail."""
    return LogWindow(records_max, bytes_max, park_topic)
