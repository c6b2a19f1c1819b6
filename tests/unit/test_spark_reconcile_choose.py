"""Which cut is compared, and who is behind or silent: decided from a few cut rows."""

from __future__ import annotations

from msgspec.structs import replace

from connectors.spark.common.cut import ShardCut
from connectors.spark.common.topics import Span
from connectors.spark.reconcile.digests import GONE_MS, Comparison, CutAt, Expected, choose
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.cursor import Cursor
from delayservice.replicas.digest import HOUR_MS
from delayservice.replicas.digest_rows import CopyId, CutRow, Damage

TOPIC_ID = "id"
PLACE = ("any", 0)
START = Cursor()


CUT = CutRow(
    **CopyId("n1", "any", TOPIC_ID, 0, "1")._asdict(),
    cut=0,
    cut_ms=0,
    k=(0, 0),
    h=0,
    stored=0,
    from_ms=0,
    count=0,
    hash="0",
    pending=0,
    behind=False,
    role="replica",
)
CRC = (Damage(1, 2, 3, 4, "crc"),)


def a_cut(node: str, cut: int, row: int, **more: object) -> CutAt:
    at = {"cut": cut, "cut_ms": cut * 60_000, "k": (cut, 0), "h": cut, "stored": cut}
    return CutAt(row, replace(CUT, node=node, **at, **more))


def only(
    rows: list[CutAt],
    expected: Expected | None = None,
    cursor: Cursor = START,
    now_ms: int = 0,
) -> Comparison:
    shard = ShardCut(*PLACE, TOPIC_ID, cursor, cursor, Contracts([(0, Contract())]), Span(0, 0))
    (found,) = choose(rows, {PLACE: shard}, expected or Expected(), now_ms)
    return found


def rows_of(found: Comparison) -> list[int]:
    return [at.row for at in found.nodes.values() if at is not None]


def test_the_newest_cut_that_all_have_is_compared() -> None:
    found = only([a_cut("n1", 1, 1), a_cut("n1", 2, 5), a_cut("n1", 3, 9), a_cut("n2", 2, 6)])
    assert (found.cut, [*found.nodes], found.cursor) == (2, ["n1", "n2"], Cursor((2, 0), 2))
    assert rows_of(found) == [5, 6]
    assert not found.behind


def test_hours_are_compared_from_where_every_copy_speaks_of_them() -> None:
    found = only([a_cut("n1", 1, 1, from_ms=60_000), a_cut("n2", 1, 2, from_ms=120_000)])
    assert found.from_ms == HOUR_MS  # of the hour before, their rows are not of the same records
    found = only([a_cut("n1", 1, 1, from_ms=60_000), a_cut("n2", 1, 2, from_ms=60_000)])
    assert found.from_ms == 60_000


def test_a_cut_that_is_published_twice_counts_as_it_was_last() -> None:
    found = only([a_cut("n1", 1, 1), a_cut("n1", 1, 7), a_cut("n2", 1, 2)])
    assert rows_of(found) == [7, 2]


def test_a_copy_whose_newest_cut_is_too_old_is_behind_and_holds_nobody_up() -> None:
    rows: list[CutAt] = [a_cut("n1", 20, 9), a_cut("n2", 20, 8), a_cut("n3", 9, 1)]
    rows += [a_cut("n1", 9, 2), a_cut("n2", 9, 3)]
    found = only(rows, Expected(behind_ms=600_000))
    assert (found.cut, [*found.nodes]) == (20, ["n1", "n2"])
    assert list(found.behind) == ["n3"]
    assert only(rows, Expected(behind_ms=700_000)).cut == 9


def test_a_copy_that_is_late_at_one_cut_is_compared_at_the_one_before() -> None:
    rows: list[CutAt] = [a_cut("n1", 2, 3), a_cut("n1", 1, 1)]
    rows += [a_cut("n2", 2, 4, behind=True), a_cut("n2", 1, 2)]
    found = only(rows)
    assert (found.cut, [*found.nodes], found.behind) == (1, ["n1", "n2"], {})


def test_a_copy_that_has_long_come_to_no_cut_is_behind_by_its_own_words() -> None:
    rows: list[CutAt] = [a_cut("n1", cut, cut) for cut in range(1, 13)]
    late = [a_cut("n2", cut, 20 + cut, behind=cut > 1) for cut in range(1, 13)]
    found = only([*rows, *late])
    assert (found.cut, [*found.nodes]) == (12, ["n1"])
    assert found.behind == {"n2": "has stored up to 12 and not to 12"}
    never = only([a_cut("n1", 2, 1), a_cut("n2", 2, 2, behind=True)])
    assert ([*never.nodes], list(never.behind)) == (["n1"], ["n2"])


def test_a_removed_node_is_left_out_of_named_nodes() -> None:
    days = GONE_MS // 60_000 + 2
    rows: list[CutAt] = [a_cut("n1", days, 5), a_cut("n2", days, 6), a_cut("n3", 1, 1)]
    found = only(rows)
    assert ([*found.nodes], found.behind, list(found.silent)) == (["n1", "n2"], {}, ["n3"])
    assert "--node" in found.silent["n3"]
    named = only(rows, Expected(nodes=("n1", "n2")))
    assert ([*named.nodes], named.behind, named.silent) == (["n1", "n2"], {}, {})
    wanted = only(rows, Expected(nodes=("n1", "n3")))
    assert ([*wanted.nodes], list(wanted.silent)) == (["n1"], ["n3"])


def test_where_no_cut_is_shared_by_all_most_copies_are_compared() -> None:
    rows: list[CutAt] = [a_cut("n1", 2, 1), a_cut("n2", 2, 2), a_cut("n3", 3, 3)]
    found = only(rows)
    assert (found.cut, [*found.nodes], list(found.behind)) == (2, ["n1", "n2"], ["n3"])


def test_rows_of_an_earlier_life_or_of_another_topic_are_none() -> None:
    found = only([a_cut("n1", 1, 1, life="0"), a_cut("n1", 2, 3), a_cut("n2", 1, 2)])
    assert (found.cut, [*found.nodes]) == (2, ["n1"])
    assert only([a_cut("n1", 1, 1, topic_id="other")]).silent == {"": "no copy reports this shard"}


def test_nodes_that_should_report_and_do_not_are_silent() -> None:
    rows: list[CutAt] = [a_cut("n1", 1, 1)]
    assert list(only(rows, Expected(nodes=("n1", "n2"))).silent) == ["n2"]
    assert list(only(rows, Expected(replicas=2)).silent) == [""]
    assert only(rows, Expected(nodes=("n1", "n2"), replicas=1)).silent == {}
    assert only(rows).silent == {}


def test_damage_is_what_the_newest_cut_says() -> None:
    found = only(
        [a_cut("n1", 1, 1, damaged=CRC), a_cut("n2", 1, 2, damaged=CRC), a_cut("n2", 2, 3)]
    )
    assert list(found.damaged) == ["n1"]


def test_copies_that_all_stand_still_while_the_slice_goes_on_are_behind() -> None:
    """By the brokers' clock: compared with each other, none of them is older than another."""
    rows: list[CutAt] = [a_cut("n1", 5, 5), a_cut("n2", 5, 6)]
    now_ms, gone_on = 5 * 60_000 + 600_001, Cursor((6, 0), 6)
    found = only(rows, cursor=gone_on, now_ms=now_ms)
    assert ([*found.nodes], list(found.behind), found.stale) == (
        [],
        ["n1", "n2"],
        {"n1": 5, "n2": 5},
    )
    assert {*only(rows, cursor=gone_on, now_ms=now_ms - 1).nodes} == {"n1", "n2"}
    idle = only(rows, cursor=Cursor((5, 0), 5), now_ms=now_ms)
    assert ([*idle.nodes], idle.behind) == (["n1", "n2"], {})


def test_the_owner_and_what_waits_are_as_the_newest_cuts_say() -> None:
    found = only([a_cut("n1", 1, 1, role="owner", pending=7), a_cut("n2", 1, 2, pending=9)])
    assert (found.owners, found.pending) == ({"n1"}, 9)
