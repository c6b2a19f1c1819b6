"""The parameters that a record's key or validity depends on, and from which offset they hold.

A key must be a pure function of the log (design rule 2), so these parameters are not read from a
configuration file but from the checkpoint: a list of ``(from_offset, Contract)``, which the owner
extends above the end of the log and every node adopts. Changing a setting never changes a key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from delayservice.base.errors import DelayServiceError
from delayservice.contract.topic_names import is_legal_topic, is_reserved

CONTRACT_VERSION: Final = 5
"""Raised when a record is read another way: a node that doesn't know a version must not go on.

1: no fire, no window, no recurring schedules, no level topics; rolled all at the end of the window.
2: ``reserved`` holds names only. 3: it may hold patterns.
4: durations with units; what looks like seconds, and times on level topics, are refused.
   Neither ``allow`` nor ``reserved``: settings say what is allowed, at settling.
5: ids have a home partition.
"""

NAMES_VERSION: Final = 2
"""The version of a contract that reserves no pattern: nodes that know no later one follow it."""

PATTERNS_VERSION: Final = 3
"""The first version of a contract that may reserve patterns."""

UNITS_VERSION: Final = 4
"""The first version that reads durations with units and refuses seconds."""

TARGETS_BY_SETTINGS_VERSION: Final = 4
"""The first version of a contract that has no allowlist: settings judge targets at settling."""

HOMES_VERSION: Final = 5
"""The first version by which ids may find home."""

_SINCE: Final = {"roll_spread_ms": 2, "level_ms": 2, "id_partitions": HOMES_VERSION}
"""The version that brought a parameter, where that is not the first."""

_BEFORE: Final = {
    "allow": TARGETS_BY_SETTINGS_VERSION,
    "reserved": TARGETS_BY_SETTINGS_VERSION,
}
"""The version that has a parameter no more."""

PAST_DUE_DELIVER: Final = "deliver"
PAST_DUE_DEAD_LETTER: Final = "dead-letter"

MAX_DELAY_MS_MAX: Final = 2**52
"""Half of the range of due times, so that timestamp + delay stays exact everywhere."""

_DAY_MS = 86_400_000
_PARTITIONS_MAX = 2**31 - 1
_HEADER_BYTES_RANGE = (256, 65_536)


class ContractError(DelayServiceError):
    """A contract is out of bounds, or the checkpoint holds one that this version can't follow."""


@dataclass(frozen=True, slots=True)
class Contract:
    """Rules by which records of one delay topic are read from some offset on."""

    version: int = NAMES_VERSION
    roll_window_ms: int = 7_200_000
    """A record due later than its timestamp plus this is rolled then (rule 12)."""
    roll_spread_ms: int = 0
    """Largest spread of rolls, by offset, ms: a burst does not come back as a burst."""
    max_delay_ms: int = 3_650 * _DAY_MS
    """The longest delay, from the record's timestamp."""
    clamp: bool = False
    """A longer delay is shortened to ``max_delay_ms`` instead of dead-lettered."""
    past_due: str = PAST_DUE_DELIVER
    """``deliver`` or ``dead-letter`` what is due before its own timestamp."""
    default_target: str | None = None
    """Target of records that name none; allowed without a pattern."""
    allow: tuple[str, ...] = ()
    """Shell-style patterns of target topics, matching whole names, case-sensitive; none: deny.
    Empty from version 4 on, as ``reserved``."""
    reserved: tuple[str, ...] = ()
    """The service's own topics, the other delay topics among them: never targets, whatever
    ``allow`` says. From version 3 on also shell-style patterns, as in ``allow``."""
    header_bytes_max: int = 4_096
    """Longest value of one input header; a topic name always fits."""
    id_bytes_max: int = 512
    """Longest ``delay-id``, or record key that serves as one."""
    level_ms: int = 0
    """The one delay of a level topic, from the record's timestamp; 0: records say it themselves."""
    id_partitions: int = 0
    """Ids are at home in partition murmur2(id) modulo this; 0: they stay where they lie. It never
    changes once it is set, or what is at home would not be found any more."""

    def __post_init__(self) -> None:
        """Check every bound; raise ``ContractError`` for a wrong one, or for an unknown version."""
        if not 1 <= self.version <= CONTRACT_VERSION:
            msg = (
                f"contract version {self.version} is unknown to this version of the service, which "
                f"reads 1 to {CONTRACT_VERSION}: upgrade this node before it serves the slice"
            )
            raise ContractError(msg)
        _check_range("roll_window_ms", self.roll_window_ms, 1, MAX_DELAY_MS_MAX)
        _check_range("roll_spread_ms", self.roll_spread_ms, 0, self.roll_window_ms - 1)
        _check_range("level_ms", self.level_ms, 0, MAX_DELAY_MS_MAX)
        _check_range("id_partitions", self.id_partitions, 0, _PARTITIONS_MAX)
        _check_range("max_delay_ms", self.max_delay_ms, 0, MAX_DELAY_MS_MAX)
        _check_range("header_bytes_max", self.header_bytes_max, *_HEADER_BYTES_RANGE)
        _check_range("id_bytes_max", self.id_bytes_max, 1, self.header_bytes_max)
        if self.past_due not in (PAST_DUE_DELIVER, PAST_DUE_DEAD_LETTER):
            msg = f"past_due is {self.past_due!r}: use 'deliver' or 'dead-letter'"
            raise ContractError(msg)
        if self.id_partitions and self.version < HOMES_VERSION:
            msg = f"a contract of version {self.version} has no id_partitions"
            raise ContractError(msg)
        if not self.has_allowlist and (self.allow or self.reserved):
            msg = f"a contract of version {self.version} has neither allow nor reserved"
            raise ContractError(msg)
        self._check_default_target()

    @property
    def has_allowlist(self) -> bool:
        """Return whether a record's target was judged when the record was read."""
        return self.version < TARGETS_BY_SETTINGS_VERSION

    def _check_default_target(self) -> None:
        topic = self.default_target
        if topic is None:
            return
        if not is_legal_topic(topic) or self.reserves(topic):
            msg = f"default_target {topic!r} is no legal topic name, or is reserved"
            raise ContractError(msg)

    def reserves(self, topic: str) -> bool:
        """Return whether a topic is never a target by this contract."""
        if is_reserved(topic) or topic in self.reserved:
            return True
        if self.version < PATTERNS_VERSION:
            return False
        return any(fnmatchcase(topic, pattern) for pattern in self.reserved)

    def to_json(self) -> dict[str, object]:
        """Return a dictionary of JSON types for the checkpoint."""
        names = _parameters(self.version)
        return {name: _plain(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, data: object) -> Contract:
        """Return the contract that ``to_json`` wrote.

        Raises:
            ContractError: an unknown version, an unknown or a missing parameter, a wrong type.
        """
        if not isinstance(data, Mapping):
            msg = f"a contract is a JSON object, not {type(data).__name__}"
            raise ContractError(msg)
        version = data.get("version", NAMES_VERSION)
        known = _parameters(version if type(version) is int else CONTRACT_VERSION)
        is_followed = type(version) is int and 1 <= version <= CONTRACT_VERSION
        if is_followed and data.keys() != set(known):
            odd = ", ".join(sorted(str(name) for name in data.keys() ^ set(known)))
            msg = f"a contract of version {version} differs in: {odd}"
            raise ContractError(msg)
        known_part = {name: value for name, value in data.items() if name in known}
        try:
            return msgspec.convert(known_part, cls)
        except msgspec.ValidationError as exc:
            msg = f"a contract can't be read: {exc}"
            raise ContractError(msg) from exc


def _parameters(version: int) -> list[str]:
    """Return the fields of a contract of this version."""
    names = (field.name for field in fields(Contract))
    return [n for n in names if _SINCE.get(n, 1) <= version < _BEFORE.get(n, version + 1)]


class Contracts:
    """The contracts of one shard, ascending by the offset from which each holds. Immutable."""

    __slots__ = ("_contracts", "_starts")

    def __init__(self, entries: Iterable[tuple[int, Contract]]) -> None:
        """Take ``(from_offset, contract)`` pairs in ascending order.

        Raises:
            ContractError: none, not ascending, or a negative offset.
        """
        pairs = list(entries)
        self._starts = [start for start, _ in pairs]
        self._contracts = [contract for _, contract in pairs]
        ascending = all(a < b for a, b in zip(self._starts, self._starts[1:], strict=False))
        if not pairs or not ascending or self._starts[0] < 0:
            msg = f"contracts must start at ascending offsets, not {self._starts}"
            raise ContractError(msg)

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same contracts from the same offsets."""
        return isinstance(other, Contracts) and self.entries() == other.entries()

    def __hash__(self) -> int:
        """Return the hash of the entries."""
        return hash(self.entries())

    def __repr__(self) -> str:
        """For logs and failed tests."""
        return f"Contracts({list(self.entries())!r})"

    def entries(self) -> tuple[tuple[int, Contract], ...]:
        """Return all ``(from_offset, contract)`` pairs, ascending."""
        return tuple(zip(self._starts, self._contracts, strict=True))

    def at(self, offset: int) -> Contract:
        """Return the contract that holds at an offset; below the first start, the first one."""
        if len(self._starts) == 1:
            return self._contracts[0]
        return self._contracts[max(bisect_right(self._starts, offset) - 1, 0)]

    @property
    def newest_version(self) -> int:
        """Return the highest version among them."""
        return max(contract.version for contract in self._contracts)

    def since(self, offset: int) -> tuple[Contract, ...]:
        """Return the contracts that hold at an offset and above."""
        return tuple(self._contracts[max(bisect_right(self._starts, offset) - 1, 0) :])

    def span(self, offset: int) -> tuple[int, int | None]:
        """``[first, stop)`` offsets around ``offset`` with one contract; stop None: no end yet."""
        after = max(bisect_right(self._starts, offset), 1)
        first = 0 if after == 1 else self._starts[after - 1]
        return first, self._starts[after] if after < len(self._starts) else None

    def extended(self, end: int, contract: Contract, ahead: int = 0) -> Contracts:
        """These below ``end``, and another one from ``ahead`` offsets above it on.

        What was to begin at ``end`` or above is dropped: the log holds no record that was read by
        it, so no key changes. Only the wanted contract stays as it is if it begins early enough.

        Args:
            end: of the log, read when the owners before were fenced.
            contract: what is wanted.
            ahead: so many offsets are still read by what holds at the end.
        """
        wanted = self._with_homes(contract)
        if wanted is None:
            return self
        contract = wanted
        if end == 0:
            return Contracts([(0, contract)])
        begun = max(bisect_left(self._starts, end), 1)  # the first holds below its start as well
        kept, coming = self.entries()[:begun], self.entries()[begun:]
        if contract == kept[-1][1]:
            return Contracts(kept)
        start = max(end + ahead, kept[-1][0] + 1)
        if coming and coming[0][1] == contract and coming[0][0] <= start:
            return Contracts((*kept, coming[0]))
        return Contracts((*kept, (start, contract)))

    def _with_homes(self, contract: Contract) -> Contract | None:
        """Return a successor with the same homes of ids; None: its version knows no homes."""
        count = self.id_partitions
        if count and contract.version < HOMES_VERSION:
            return None
        return replace(contract, id_partitions=count) if count else contract

    @property
    def id_partitions(self) -> int:
        """Return the number of partitions in which ids are at home; 0: they are not."""
        return next((c.id_partitions for c in self._contracts if c.id_partitions), 0)

    def encode(self) -> bytes:
        """``to_json`` as bytes: what it takes in a checkpoint."""
        return msgspec.json.encode(self.to_json())

    def needed_from(self, log_start: int) -> Contracts:
        """These without those of which the log holds no record any more: no node will read one."""
        gone = bisect_right(self._starts, log_start) - 1
        return self if gone < 1 else Contracts(self.entries()[gone:])

    def agree_below(self, stop: int, other: Contracts) -> bool:
        """Return whether both read every offset below ``stop`` by the same parameters.

        Where one begins later because its first contracts were dropped, the other has to know the
        one with which it begins: then it knew those before. One that begins at ``stop`` or above is
        not compared: no offset below was read by it.
        """
        first = max(self._starts[0], other._starts[0])
        if stop == 0:
            return True
        if first not in self._starts or first not in other._starts:
            return False
        compared = {at for at in (*self._starts, *other._starts) if first <= at < stop}
        return all(self.at(start) == other.at(start) for start in compared)

    def to_json(self) -> list[dict[str, object]]:
        """Return a list of JSON types for the checkpoint."""
        return [{"from": start, "contract": c.to_json()} for start, c in self.entries()]

    @classmethod
    def from_json(cls, data: object) -> Contracts:
        """Return the contracts that ``to_json`` wrote.

        Raises:
            ContractError: not such a list, or one of its contracts can't be followed.
        """
        if not isinstance(data, list):
            msg = f"contracts are a JSON list, not {type(data).__name__}"
            raise ContractError(msg)
        return cls(_entry_from_json(item) for item in data)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        msg = f"{name} is {value}: it must be {low} to {high}"
        raise ContractError(msg)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _entry_from_json(item: object) -> tuple[int, Contract]:
    start = item.get("from") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or type(start) is not int:
        msg = f"a contract entry needs 'from' and 'contract', not {item!r:.100}"
        raise ContractError(msg)
    return start, Contract.from_json(item.get("contract"))
