"""Mistakes between the election and the loop. Schedules with elections find each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from connectors.kafka.take_over_client import KafkaTakeOverClient
from delayservice.slices import ownership
from delayservice.slices.slice import Slice
from delayservice.slices.state import LoopState
from ha.elected_ownership import ElectedOwnership
from ha.election import Election
from ha.zookeeper_session import EVERYTHING
from tests.simulation.elections import ELECTION_RATE
from tests.simulation.mutating import mistake, rewritten


@mistake(ownership, "follow_roles")
def owner_asks_no_more(original: Any, state: LoopState) -> None:
    """A loop that owns a slice goes by the roles that it was told before."""
    if not any(slice_.is_owner for slice_ in state.slices.values()):
        original(state)


@mistake(ElectedOwnership, "_session_lost")
def lost_session_shows_with_the_next_look(_: Any, owned: ElectedOwnership) -> None:
    """An owner whose session has ended is the owner until it has read who is."""
    owned._is_registered = owned._is_prepared = False
    owned.changed(EVERYTHING)


def disconnected_owner_settles() -> AbstractContextManager[Any]:
    """The lease alone says whether records are settled."""
    right = "views.owning if self._session.is_connected else views.paused"
    return rewritten(ElectedOwnership, "roles", right, "views.owning")


@mistake(ElectedOwnership, "__init__")
def lease_by_the_wall_clock(original: Any, owned: ElectedOwnership, *args: Any, **kw: Any) -> None:
    """A clock that is set back makes the lease longer."""
    node = kw["boot_s"].__self__.node
    kw["boot_s"] = lambda: node.clock.wall_ms() * ELECTION_RATE / 1000
    original(owned, *args, **kw)


def lease_as_long_as_the_session() -> AbstractContextManager[Any]:
    """Clocks are taken to be equally fast."""
    return patch("ha.election_state._SAFE_PART", 1.0)


def heir_is_owner() -> AbstractContextManager[Any]:
    """An heir serves while the owner finishes its last transaction."""
    return rewritten(Election, "_role", "Role.HEIR if is_able", "Role.OWNER if is_able")


def resigned_while_it_serves() -> AbstractContextManager[Any]:
    """An owner that hands over resigns before its loop has released the slice."""
    right = "None if state.is_settling else Resign"
    return rewritten(Election, "_as_owner", right, "Resign")


def epoch_from_zookeeper() -> AbstractContextManager[Any]:
    """Checkpoints are numbered by the election, whatever the last one says."""
    right = "max(epoch_min, 1 + (checkpoint.epoch if checkpoint else 0))"
    return rewritten(Slice, "taken_over", right, "epoch_min")


@mistake(KafkaTakeOverClient, "fence")
def lapsed_node_is_not_fenced(original: Any, client: KafkaTakeOverClient, writers: Any) -> None:
    """Who has no session in ZooKeeper any more is taken for dead."""
    lives = client._confirm.__self__.world.elections.zookeeper.lives  # type: ignore[attr-defined]
    original(client, [writer for writer in writers if f"{writer[0]}:0" in lives])
