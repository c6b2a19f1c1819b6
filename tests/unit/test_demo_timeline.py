"""Owners over time: who had which slice, why it went on, and how long nobody had it."""

from __future__ import annotations

from delay_devtools.demo.timeline import Act, Deed, Ending, ending, fences, strip
from delay_devtools.nodes import SliceEvent, hand_overs, owners, ownerships


def took(at_ms: float, node: str, epoch: int, slice_no: int = 0) -> SliceEvent:
    return SliceEvent(at_ms, node, "took_over", slice_no, epoch)


def handed(at_ms: float, node: str, epoch: int) -> SliceEvent:
    return SliceEvent(at_ms, node, "handed_over", 0, epoch)


def lost(at_ms: float, node: str, why: str) -> SliceEvent:
    return SliceEvent(at_ms, node, "ownership_lost", 0, 0, why)


def act(
    deed: Deed, node: str, at_ms: float, served_ms: float, woken_ms: float | None = None
) -> Act:
    return Act(deed, node, (0,), at_ms, "", served_ms, woken_ms)


KILL = act(Deed.KILL, "n1", 500, 900)
FREEZE = act(Deed.FREEZE, "n1", 500, 900, 1_200)
RESTART = act(Deed.RESTART, "n1", 500, 900)


def test_the_last_owner_is_the_one_with_the_highest_epoch_whoever_logged_last() -> None:
    found = owners([took(900, "n2", 2), took(950, "n1", 1), took(10, "n3", 7, slice_no=1)])
    assert {n: one.node_id for n, one in found.items()} == {0: "n2", 1: "n3"}


def test_only_the_broker_fences_and_only_a_woken_node() -> None:
    found = [
        took(100, "n1", 1),
        took(900, "n2", 2),
        lost(1_100, "n1", "fenced at flush"),
        lost(1_250, "n1", "slice 0: fenced at commit_transaction"),
        lost(1_260, "n1", "ensemble out of reach"),
    ]
    assert fences(found, FREEZE) == 1
    assert fences(found, KILL) == 0


def test_a_hand_over_is_one_at_a_stop_or_back_home() -> None:
    found = [
        took(100, "n1", 1),
        handed(600, "n1", 1),
        took(650, "n2", 2),
        handed(2_000, "n2", 2),
        took(2_040, "n1", 3),
    ]
    assert hand_overs(found) == [(0, 600), (0, 2_000)]


def test_a_zombie_that_lets_go_in_good_order_has_handed_nothing_over() -> None:
    assert hand_overs([took(100, "n1", 1), took(900, "n2", 2), handed(1_300, "n1", 1)]) == []


def test_the_strip_names_who_delivers_at_each_moment_and_shows_when_nobody_does() -> None:
    killed = ownerships([took(0, "n1", 1), took(700, "n2", 2)])
    assert strip(killed, [KILL], (0, 1_000), 10) == "11111··222"
    handed_over = ownerships([took(100, "n1", 1), handed(400, "n1", 1), took(700, "n2", 2)])
    assert strip(handed_over, [RESTART], (0, 1_000), 10) == "·111···222"


def test_a_woken_node_was_fenced_or_stepped_down_by_its_own_word_on_every_slice() -> None:
    both = Act(Deed.FREEZE, "n1", (0, 1), 500, "", 900, 1_200)
    let_go = handed(1_300, "n1", 1)
    fenced = SliceEvent(1_310, "n1", "ownership_lost", 1, 0, "slice 1: fenced at flush")
    early = SliceEvent(1_100, "n1", "ownership_lost", 1, 0, "slice 1: fenced at flush")
    again = took(4_000, "n1", 3, slice_no=1)
    assert ending([let_go], both) is Ending.SILENT
    assert ending([let_go, early], both) is Ending.SILENT
    assert ending([let_go, took(1_310, "n2", 2, slice_no=1)], both) is Ending.SILENT
    assert ending([let_go, again], both) is Ending.STEPPED_DOWN
    assert ending([let_go, fenced], both) is Ending.FENCED
