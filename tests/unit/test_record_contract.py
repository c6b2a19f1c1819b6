"""Contracts: bounds, the list over offsets, and what a checkpoint holds of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from delayservice.contract.contracts import (
    CONTRACT_VERSION,
    PARAMETERS,
    Contract,
    ContractError,
    Contracts,
    home_partitions,
)

A, B, C = (Contract(max_delay_ms=ms) for ms in (1, 2, 3))


@pytest.mark.parametrize(
    "parameters",
    [
        {"version": CONTRACT_VERSION + 1},
        {"version": 0},
        {"roll_window_ms": 0},
        {"roll_window_ms": 8, "roll_spread_ms": 8},
        {"level_ms": -1},
        {"max_delay_ms": -1},
        {"max_delay_ms": 2**52 + 1},
        {"past_due": "ignore"},
        {"header_bytes_max": 255},
        {"id_bytes_max": 0},
        {"default_target": "a/b"},
        {"default_target": "delay_topic_any"},
        {"default_target": "__x"},
    ],
)
def test_a_contract_out_of_bounds_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        Contract(**parameters)


def test_a_contract_survives_json() -> None:
    contract = Contract(default_target="d", clamp=True)
    assert Contract.from_json(json.loads(json.dumps(contract.to_json()))) == contract


@pytest.mark.parametrize(
    "change", [{"version": CONTRACT_VERSION + 1}, {"new": 1}, {"clamp": 1}, {"max_delay_ms": "1"}]
)
def test_a_contract_that_this_version_cannot_follow_is_an_error(change: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        Contract.from_json({**Contract().to_json(), **change})


def test_an_unknown_version_is_named_even_with_unknown_parameters() -> None:
    with pytest.raises(
        ContractError, match=rf"version {CONTRACT_VERSION + 1} is unknown.*upgrade this node"
    ):
        Contract.from_json({**Contract().to_json(), "version": CONTRACT_VERSION + 1, "new": 1})


def test_a_version_that_adds_a_parameter_is_refused_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: dict[str, Any] = {"id_partitions": 3}
    known = PARAMETERS[1]
    monkeypatch.setitem(PARAMETERS, 1, known - added.keys())
    monkeypatch.setitem(PARAMETERS, 2, known)
    before, after = Contract(1), Contract(2, **added)
    assert before.to_json().keys().isdisjoint(added)
    for contract in (before, after):
        assert Contract.from_json(contract.to_json()) == contract
    with pytest.raises(ContractError, match="version 1 differs in: id_partitions"):
        Contract.from_json({**before.to_json(), **added})
    data = after.to_json()
    monkeypatch.delitem(PARAMETERS, 2)
    with pytest.raises(ContractError, match=r"version 2 is unknown.*upgrade this node"):
        Contract.from_json(data)


@pytest.mark.parametrize("data", [None, 1, [], "x", {}])
def test_an_unreadable_contract_is_an_error(data: object) -> None:
    with pytest.raises(ContractError):
        Contract.from_json(data)


@pytest.mark.parametrize("data", [None, {}, [], [1], [{"from": "0"}], [{"from": True}]])
def test_an_unreadable_list_of_contracts_is_an_error(data: object) -> None:
    with pytest.raises(ContractError):
        Contracts.from_json(data)


def test_contracts_hold_from_their_offset_on() -> None:
    contracts = Contracts([(5, A), (10, B), (20, C)])
    held = [contracts.at(offset) for offset in (0, 5, 9, 10, 19, 20, 10**9)]
    assert held == [A, A, A, B, B, C, C]
    since = {offset: contracts.since(offset) for offset in (0, 5, 9, 10, 20, 21)}
    assert since == {0: (A, B, C), 5: (A, B, C), 9: (A, B, C), 10: (B, C), 20: (C,), 21: (C,)}
    spans = [contracts.span(offset) for offset in (0, 9, 10, 20)]
    assert spans == [(0, 10), (0, 10), (10, 20), (20, None)]


def test_a_contract_is_added_at_the_end_or_ahead_of_it() -> None:
    contracts = Contracts([(0, A)])
    assert contracts.extended(10, B).entries() == ((0, A), (10, B))
    assert contracts.extended(10, B, 5).entries() == ((0, A), (15, B))
    assert contracts.extended(10, A, 5) == contracts
    assert Contracts([(0, A), (10, B)]).extended(20, A, 5).entries() == ((0, A), (10, B), (25, A))


def test_a_contract_of_which_no_record_was_written_gives_way() -> None:
    contracts = Contracts([(0, A), (15, B)])
    assert contracts.extended(10, C, 3).entries() == ((0, A), (13, C))
    assert contracts.extended(15, C, 3).entries() == ((0, A), (18, C))
    assert contracts.extended(10, A, 3).entries() == ((0, A),)
    assert contracts.extended(16, C, 3).entries() == ((0, A), (15, B), (19, C))


def test_a_wanted_contract_that_is_to_begin_is_not_put_off() -> None:
    contracts = Contracts([(0, A), (15, B)])
    assert contracts.extended(12, B, 9) == contracts
    assert contracts.extended(10, B, 5) == contracts
    assert contracts.extended(10, B, 2).entries() == ((0, A), (12, B)), "it rests by now"


@pytest.mark.parametrize(
    ("known", "first", "partitions", "number"),
    [
        (None, None, 8, 8),  # partition 0
        (None, None, 0, None),
        (None, 4, 0, 4),
        (None, 0, 0, 0),
        (0, None, 0, 0),
        (0, 0, 8, 0),
        (0, 4, 0, 4),  # it was set when partition 0 was taken over last
        (4, None, 8, 4),
    ],
)
def test_one_shard_of_a_topic_counts_its_partitions_once(
    known: int | None, first: int | None, partitions: int, number: int | None
) -> None:
    assert home_partitions(with_homes(known), with_homes(first), partitions) == number


def with_homes(number: int | None) -> Contracts | None:
    return None if number is None else Contracts([(0, A), (5, replace(B, id_partitions=number))])


def test_a_log_without_records_needs_no_contract_but_the_wanted() -> None:
    assert Contracts([(0, A)]).extended(0, B, 5).entries() == ((0, B),)
    assert Contracts([(0, A), (10, B)]).extended(0, C).entries() == ((0, C),)


def test_the_first_contract_stays_for_what_a_truncated_log_holds_below_its_start() -> None:
    assert Contracts([(10, A)]).extended(5, B, 2).entries() == ((10, A), (11, B))


@pytest.mark.parametrize(
    "entries", [[(0, A)], [(0, A), (10, B)], [(5, A), (10, B), (20, A)], [(0, C), (9, A), (15, B)]]
)
def test_no_record_that_the_log_holds_is_read_otherwise_after_a_change(
    entries: list[tuple[int, Contract]],
) -> None:
    before = Contracts(entries)
    for end, ahead, wanted in product(range(25), (0, 1, 7, 100), (A, B, C)):
        after = before.extended(end, wanted, ahead)
        assert [after.at(o) for o in range(end)] == [before.at(o) for o in range(end)]
        assert after.entries()[-1][1] == wanted
        assert after.entries()[-1][0] <= max(end + ahead, entries[0][0] + 1)


@pytest.mark.parametrize("entries", [[], [(-1, A)], [(1, A), (1, B)], [(2, A), (1, B)]])
def test_contracts_must_ascend(entries: list[tuple[int, Contract]]) -> None:
    with pytest.raises(ContractError):
        Contracts(entries)


def test_contracts_are_dropped_when_the_log_holds_no_record_of_theirs() -> None:
    contracts = Contracts([(0, A), (10, B), (20, C)])
    kept = {at: contracts.needed_from(at).entries() for at in (0, 9, 10, 19, 20, 99)}
    last_two, last = ((10, B), (20, C)), ((20, C),)
    every = contracts.entries()
    assert kept == {0: every, 9: every, 10: last_two, 19: last_two, 20: last, 99: last}


def test_contracts_survive_json() -> None:
    contracts = Contracts([(0, A), (10, B)])
    again = Contracts.from_json(json.loads(json.dumps(contracts.to_json())))
    assert again == contracts
    assert hash(again) == hash(contracts)


@pytest.mark.parametrize(
    ("one", "other", "agree_up_to"),
    [
        ([(0, A)], [(0, A), (10, B)], 10),
        ([(0, A), (10, B)], [(0, A), (10, C)], 10),
        ([(0, A), (10, B)], [(0, A), (12, B)], 10),
        ([(0, A), (10, B), (20, C)], [(0, A), (10, B)], 20),
        ([(0, A)], [(0, B)], 0),
        ([(0, A)], [(0, B), (10, A)], 0),
        ([(5, A)], [(5, B)], 5),
        ([(5, A)], [(0, A), (7, A)], 0),
        ([(10, B), (20, C)], [(0, A), (10, B), (20, C)], 10**9),
        ([(10, B), (20, C)], [(0, A), (10, B), (20, A)], 20),
        ([(10, B), (20, C)], [(0, A), (10, C), (20, C)], 10),
        ([(10, B), (20, C)], [(0, A)], 0),
    ],
)
def test_contracts_agree_up_to_where_one_offset_is_read_otherwise(
    one: list[tuple[int, Contract]], other: list[tuple[int, Contract]], agree_up_to: int
) -> None:
    first, second = Contracts(one), Contracts(other)
    stops = [0, 1, 5, 9, 10, 11, 12, 19, 20, 21, 100]
    agree = [stop <= agree_up_to for stop in stops]
    assert [first.agree_below(stop, second) for stop in stops] == agree
    assert [second.agree_below(stop, first) for stop in stops] == agree
