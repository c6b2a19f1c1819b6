"""What is explored: setups in which the rules hold, mistakes that break them, and their limits."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from tests.simulation.home_model.model import (
    CANCEL,
    FIRE,
    FOREVER,
    SCHEDULE,
    Budget,
    Setup,
    Wish,
)

_schedule = partial(Wish, SCHEDULE)
_CANCEL: Final = Wish(CANCEL)
_FIRE: Final = Wish(FIRE)

_ON: Final = ((0, 2),)
_ON_AFTER_ONE: Final = ((0, 0), (1, 2))

_CANCELLED_AWAY: Final = Setup(((), (_schedule(1), _CANCEL)))
_OLD_AND_NEW: Final = Setup(
    ((), (_schedule(1), _schedule(2), _CANCEL)), (_ON, _ON_AFTER_ONE), Budget(0, 1, 1)
)
_OLD_CANCELLED: Final = Setup(((), (_schedule(2), _CANCEL)), (_ON, _ON_AFTER_ONE))
_TWICE: Final = Setup(((), (_schedule(2), _schedule(2), _CANCEL)), budget=Budget(0, 1))
_EXPIRES: Final = Setup(((), (_schedule(2), _schedule(1, expires=1))))
_LARGE_AFTER_CANCEL: Final = Setup(
    ((), (_schedule(1), _CANCEL, _schedule(1, is_large=True))), budget=Budget(0, 1), clock_max=2
)
_LARGE_CANCEL: Final = Setup(((), (_schedule(2, is_large=True), Wish(CANCEL, is_large=True))))
_PARTITION_ADDED: Final = Setup(
    ((_schedule(2, "y"),), (Wish(CANCEL, name="y"),)), (((0, 1),), ((0, 1),)), partitions=1
)
_HOME_IS_OFF: Final = Setup(((), (_schedule(2), _CANCEL)), (((0, 0),), _ON))
_COUNTS_DIFFER: Final = Setup(((), (_schedule(2),)), (((0, 3),), _ON))

SETUPS: Final[dict[str, Setup]] = {
    "cancelled away": _CANCELLED_AWAY,
    "pending before it was turned on": _OLD_AND_NEW,
    "cancelled after it was turned on": _OLD_CANCELLED,
    "recurring before it was turned on": Setup(
        ((), (_schedule(1, occurrences=2), _FIRE, _CANCEL)), (_ON, _ON_AFTER_ONE), Budget(1, 1, 1)
    ),
    "replaced, then cancelled": _TWICE,
    "fired, then scheduled again": Setup(
        ((), (_schedule(1), _FIRE, _schedule(1))), budget=Budget(0, 1), clock_max=2
    ),
    "recurring, fired, then replaced": Setup(
        ((), (_schedule(1, occurrences=2), _FIRE, _schedule(1))), budget=Budget(0, 1), clock_max=2
    ),
    "recurring, fired behind another one": Setup(
        ((), (_schedule(1), _schedule(1, occurrences=2), _FIRE)), budget=Budget(0, 1), clock_max=2
    ),
    "cancelled from both partitions": Setup(
        ((_CANCEL,), (_schedule(1), _CANCEL)), budget=Budget(0, 1), clock_max=2
    ),
    "scheduled in both partitions": Setup(
        ((_schedule(1),), (_schedule(1), _CANCEL)), budget=Budget(0, 1), clock_max=2
    ),
    "parked at home": Setup(((), (_schedule(1), _CANCEL)), budget=Budget(0, 1, 2)),
    "expired on the way": _EXPIRES,
    "too large": _LARGE_CANCEL,
    "too large behind a cancel": _LARGE_AFTER_CANCEL,
    "more waits than fits": Setup(
        ((), (_CANCEL, _schedule(1), _CANCEL)), budget=Budget(0, 1), clock_max=2, carried_max=1
    ),
    "a partition is added": _PARTITION_ADDED,
    "turned on away first": _HOME_IS_OFF,
    "ids of both homes": Setup(
        ((_schedule(2, "y"),), (_schedule(2), _CANCEL)), budget=Budget(0, 1), clock_max=2
    ),
}
"""Explored to the end without a violation."""

MUTATIONS: Final[dict[str, Setup]] = {
    # A record goes home that is not to.
    "forward_again_at_home": _COUNTS_DIFFER,
    "forward_requeued": _OLD_AND_NEW,
    "control_goes_home_anyway": _OLD_CANCELLED,
    # It goes home in another way.
    "forward_before_acting": _OLD_CANCELLED,
    "forward_outside_transaction": _CANCELLED_AWAY,
    "delay_from_copy": _CANCELLED_AWAY,
    "key_by_due_time": _CANCELLED_AWAY,
    "home_by_current_count": _PARTITION_ADDED,
    "home_counts_as_late": _CANCELLED_AWAY,
    "home_keeps_first_base": Setup(
        ((_schedule(2), _schedule(2)), (_schedule(2),)), budget=Budget(0, 0)
    ),
    "home_read_by_its_contract": _HOME_IS_OFF,
    "expires_on_the_way": _EXPIRES,
    "control_too_large": _LARGE_CANCEL,
    # Its home can't be written to.
    "away_drops": _CANCELLED_AWAY,
    "away_blocks": _CANCELLED_AWAY,
    "away_dead_letters": _CANCELLED_AWAY,
    "waiting_is_not_found": _TWICE,
    "waiting_copy_is_hit_late": _TWICE,
    "waiting_is_settled": _TWICE,
    "carried_is_lost": _CANCELLED_AWAY,
    "carried_comes_last": _CANCELLED_AWAY,
    "refused_takes_along": _LARGE_AFTER_CANCEL,
}
"""Mistakes, each where it is found. ``waiting_is_settled`` is the design's text as it stood."""

LIMITS: Final[dict[str, Setup]] = {
    "turned off and on again": Setup(
        ((), (_schedule(2), _schedule(2), _CANCEL)), (_ON, ((0, 2), (1, 0), (2, 2)))
    ),
    "partitions disagree on the count": Setup(
        ((_schedule(2),), (_schedule(1), _CANCEL)), (((0, 3),), _ON)
    ),
    "a forwarded record is written again": Setup(((), (_schedule(1),)), budget=Budget(0, 0, 0, 1)),
}
"""What breaks a promise although all rules are followed: to be refused or documented."""


def random_setup(rng: Random) -> Setup:
    """A longer setup than can be explored to the end."""
    scripts = [[_random_wish(rng) for _ in range(rng.randint(0, 5))] for _ in range(2)]
    on = rng.choice([_ON, _ON, _ON_AFTER_ONE, ((0, 0), (3, 2))])
    return Setup(
        (tuple(scripts[0]), tuple(scripts[1])),
        (rng.choice([_ON, ((0, 0), (2, 2))]), on),
        Budget(2, 3, 2),
        clock_max=6,
        steps_max=rng.randint(1, 4),
        carried_max=rng.choice([1, 2, 8]),
    )


def _random_wish(rng: Random) -> Wish:
    name = rng.choice("xxxy")
    if rng.random() < 0.4:
        return Wish(rng.choice([CANCEL, CANCEL, FIRE]), name=name)
    return Wish(
        SCHEDULE,
        rng.randint(0, 3),
        name,
        expires=rng.choice([FOREVER, FOREVER, rng.randint(1, 5)]),
        occurrences=rng.choice([1, 1, 2]),
        is_large=rng.random() < 0.1,
    )
