"""The parameters that a record's key or validity depends on, and from which offset they apply.

A key must be a pure function of the log (design rule 2), so these parameters are not read from a
configuration file but from the checkpoint: a list of ``(from_offset, Contract)``. When settings
change, the owner adds a contract that applies from the end of the log, or a higher offset, on, and
every node adopts the list. So a changed setting never changes a key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from typing import Final

import msgspec

from delayservice.base.errors import DelayServiceError
from delayservice.contract.names import is_legal_topic, is_reserved

CONTRACT_VERSION: Final = 1
"""Newest contract version. A version fixes how records are read, so a node that does not know the
version of a slice must not store or serve it."""

PAST_DUE_DELIVER: Final = "deliver"
PAST_DUE_DEAD_LETTER: Final = "dead-letter"

MAX_DELAY_MS_MAX: Final = 2**52
"""Largest delay or timestamp, ms: half the range of due times, so that sums stay exact."""

_DAY_MS = 86_400_000
_PARTITIONS_MAX = 2**31 - 1
_HEADER_BYTES_MIN = 256
HEADER_BYTES_MAX: Final = 65_536


class ContractError(DelayServiceError):
    """Contract with a parameter out of bounds, or of a version that this build does not know."""


@dataclass(frozen=True, slots=True)
class Contract:
    """Parameters by which one delay topic's records are decoded, from a source offset on."""

    version: int = CONTRACT_VERSION
    roll_window_ms: int = 7_200_000
    """Time after its append at which a pending record is rolled, ms (design rule 12)."""
    roll_spread_ms: int = 0
    """Largest time by which a roll comes before the end of ``roll_window_ms``, ms. It depends on
    the offset, so that bursts are spread; 0: no spread."""
    max_delay_ms: int = 3_650 * _DAY_MS
    """Longest delay, ms, from the time at which the record was written."""
    clamp: bool = False
    """True: a delay above ``max_delay_ms`` is shortened to it; False: the record is
    dead-lettered."""
    past_due: str = PAST_DUE_DELIVER
    """Treatment of records that were due before they were written: ``deliver`` or
    ``dead-letter``."""
    default_target: str | None = None
    """Target of records without a target header; None: such records are dead-lettered."""
    header_bytes_max: int = 4_096
    """Longest value of one input header, bytes; at least 256, so that topic names fit."""
    id_bytes_max: int = 512
    """Longest ``delay-id``, or record key that serves as one, bytes."""
    level_ms: int = 0
    """Delay of a level topic, ms from the record's append time; 0: the topic is no level topic."""
    id_partitions: int = 0
    """Number of partitions in which ids have their home: that of an id is murmur2(id) modulo this
    number; 0: ids have no home. Never changed once it is set, so that homes stay where they are."""

    def __post_init__(self) -> None:
        if self.version not in PARAMETERS:
            raise _unknown(self.version)
        _check_range("roll_window_ms", self.roll_window_ms, 1, MAX_DELAY_MS_MAX)
        _check_range("roll_spread_ms", self.roll_spread_ms, 0, self.roll_window_ms - 1)
        _check_range("level_ms", self.level_ms, 0, MAX_DELAY_MS_MAX)
        _check_range("id_partitions", self.id_partitions, 0, _PARTITIONS_MAX)
        _check_range("max_delay_ms", self.max_delay_ms, 0, MAX_DELAY_MS_MAX)
        _check_range("header_bytes_max", self.header_bytes_max, _HEADER_BYTES_MIN, HEADER_BYTES_MAX)
        _check_range("id_bytes_max", self.id_bytes_max, 1, self.header_bytes_max)
        if self.past_due not in (PAST_DUE_DELIVER, PAST_DUE_DEAD_LETTER):
            raise ContractError(f"past_due is {self.past_due!r}: use 'deliver' or 'dead-letter'")
        topic = self.default_target
        if topic is not None and (not is_legal_topic(topic) or is_reserved(topic)):
            raise ContractError(f"default_target {topic!r} is no legal topic name, or is reserved")

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _NAMES if name in PARAMETERS[self.version]}

    @classmethod
    def from_json(cls, data: object) -> Contract:
        """Return the contract that ``Contract.to_json`` wrote; raise ``ContractError`` if it is
        none.
        """
        if not isinstance(data, Mapping):
            raise ContractError(f"a contract is a JSON object, not {type(data).__name__}")
        version = data.get("version")
        if type(version) is not int:
            raise ContractError(f"a contract's version is a whole number, not {version!r:.100}")
        if version not in PARAMETERS:
            raise _unknown(version)
        odd = data.keys() ^ PARAMETERS[version]
        if odd:
            names = ", ".join(sorted(str(name) for name in odd))
            raise ContractError(f"a contract of version {version} differs in: {names}")
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as exc:
            raise ContractError(f"a contract can't be read: {exc}") from exc


_NAMES: Final = [field.name for field in fields(Contract)]

PARAMETERS: Final[dict[int, frozenset[str]]] = {1: frozenset(_NAMES)}
"""Names of a contract's parameters, by contract version. A version that adds one gets an entry."""


@dataclass(frozen=True, slots=True, init=False)
class Contracts:
    """The contracts of one shard, ascending by the offset from which each applies. Immutable."""

    _entries: tuple[tuple[int, Contract], ...]

    def __init__(self, entries: Iterable[tuple[int, Contract]]) -> None:
        """Take ascending ``(from_offset, contract)`` pairs; raise ``ContractError`` if they are
        not.
        """
        pairs = tuple(entries)
        starts = [start for start, _ in pairs]
        if not pairs or starts != sorted(set(starts)) or starts[0] < 0:
            raise ContractError(f"contracts must start at ascending offsets, not {starts}")
        object.__setattr__(self, "_entries", pairs)

    def entries(self) -> tuple[tuple[int, Contract], ...]:
        """Return all ``(from_offset, contract)`` pairs, ascending."""
        return self._entries

    # The first one also applies below its start.
    def _place(self, offset: int) -> int:
        return max(bisect_right(self._entries, offset, key=itemgetter(0)) - 1, 0)

    def at(self, offset: int) -> Contract:
        """Return the contract at a source offset. The first one also applies below its start."""
        return self._entries[self._place(offset)][1]

    @property
    def newest_version(self) -> int:
        return max(contract.version for _, contract in self._entries)

    def since(self, offset: int) -> tuple[Contract, ...]:
        """Return the contracts that apply at source offset ``offset`` or at a higher one."""
        return tuple(contract for _, contract in self._entries[self._place(offset) :])

    def span(self, offset: int) -> tuple[int, int | None]:
        """Return the offsets ``[first, stop)`` of the contract at ``offset``; ``stop`` None: no
        end.
        """
        place = self._place(offset)
        after = self._entries[place + 1 : place + 2]
        return self._entries[place][0] if place else 0, after[0][0] if after else None

    def extended(self, end: int, contract: Contract, ahead: int = 0) -> Contracts:
        """Return the contracts that start below ``end``, followed by ``contract`` from ``end +
        ahead`` on unless the last equals it.

        ``end`` is the end of the log, read after the earlier owners were fenced. Contracts that
        start there or above are dropped: no record was read by them, so no key changes. The first
        of them stays if it equals ``contract`` and starts no later. The number of home partitions
        stays.
        """
        contract = replace(contract, id_partitions=self.id_partitions or contract.id_partitions)
        if end == 0:
            return Contracts([(0, contract)])
        begun = self._place(end - 1) + 1
        kept, coming = self._entries[:begun], self._entries[begun:]
        if contract == kept[-1][1]:
            return Contracts(kept)
        start = max(end + ahead, kept[-1][0] + 1)
        if coming and coming[0][1] == contract and coming[0][0] <= start:
            return Contracts((*kept, coming[0]))
        return Contracts((*kept, (start, contract)))

    @property
    def id_partitions(self) -> int:
        return next((c.id_partitions for _, c in self._entries if c.id_partitions), 0)

    def encode(self) -> bytes:
        return msgspec.json.encode(self.to_json())

    def needed_from(self, log_start: int) -> Contracts:
        """Return these contracts without those that apply only below the log's start."""
        return Contracts(self._entries[self._place(log_start) :])

    def agree_below(self, stop: int, other: Contracts) -> bool:
        """Return whether both apply the same parameters at every source offset below ``stop``.

        If one starts later because its first contracts were dropped, the other must have a contract
        that starts at that offset too.
        """
        mine, others = dict(self._entries), dict(other._entries)
        first = max(min(mine), min(others))
        if stop == 0:
            return True
        if first not in mine or first not in others:
            return False
        compared = {at for at in mine | others if first <= at < stop}
        return all(self.at(start) == other.at(start) for start in compared)

    def to_json(self) -> list[dict[str, object]]:
        """Return a list of objects with ``from``, a source offset, and ``contract``."""
        return [{"from": start, "contract": c.to_json()} for start, c in self._entries]

    @classmethod
    def from_json(cls, data: object) -> Contracts:
        """Return the contracts that ``to_json`` wrote; raise ``ContractError`` if they can't be
        read.
        """
        if not isinstance(data, list):
            raise ContractError(f"contracts are a JSON list, not {type(data).__name__}")
        return cls(_entry_from_json(item) for item in data)


def home_partitions(
    known: Contracts | None, first: Contracts | None, partitions: int
) -> int | None:
    """Return over how many partitions a shard spreads ids if settings don't say it; None: it has to
    wait until that is known. All shards of a topic need the same number, but partitions may be
    added before some are served first: so only the one of partition 0 counts them.

    Args:
        known: contracts by which the shard was served last; None: it was never served.
        first: those of the topic's partition 0, as committed; None: it was never served.
        partitions: present partitions of the topic if this is the shard of partition 0, else 0.
    """
    if known is not None and known.id_partitions:
        return known.id_partitions
    if first is not None:
        return first.id_partitions
    return 0 if known is not None else partitions or None


def _unknown(version: int) -> ContractError:
    return ContractError(
        f"contract version {version} is unknown to this version of the service, which reads 1 to "
        f"{max(PARAMETERS)}: upgrade this node, or the Spark job that reads it"
    )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ContractError(f"{name} is {value}: it must be {low} to {high}")


def _entry_from_json(item: object) -> tuple[int, Contract]:
    start = item.get("from") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or type(start) is not int:
        raise ContractError(f"a contract entry needs 'from' and 'contract', not {item!r:.100}")
    return start, Contract.from_json(item.get("contract"))
