"""A store's label: how the records in the store were read.

One JSON object: ``{"contracts": […], "secrets": ["9f0c…"], "refused": false}``. Before, a label was
the list of contracts alone; such a store is rebuilt, for nothing says by which secret it was read.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from delayservice.core.contract import ContractError, Contracts


@dataclass(frozen=True, slots=True)
class Label:
    """How the records of a store were read.

    Attributes:
        contracts: the parameters of their keys (design rule 2).
        secrets: fingerprints of the secrets by which copies were verified.
        has_refused: whether a copy was read that none of these secrets signed. It was not stored.
    """

    contracts: Contracts
    secrets: frozenset[str]
    has_refused: bool = False

    def doubt(self, stop: int, contracts: Contracts, secrets: AbstractSet[str]) -> str:
        """Return why records below ``stop`` may be read otherwise by these contracts and secrets;
        empty: all are read as they were.
        """
        if not self.contracts.agree_below(stop, contracts):
            return "stored by other parameters"
        if self.has_refused and not secrets <= self.secrets:
            return "stored without a cluster secret that this node has now"
        return ""

    def encode(self) -> bytes:
        """Return the bytes that a store keeps."""
        return msgspec.json.encode(
            {
                "contracts": self.contracts.to_json(),
                "secrets": sorted(self.secrets),
                "refused": self.has_refused,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Label:
        """Return the label that ``encode`` wrote.

        Raises:
            ContractError: it is none, or one that this version can't follow.
        """
        try:
            facts = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            msg = f"a store's label can't be read: {exc}"
            raise ContractError(msg) from exc
        contracts = Contracts.from_json(facts.contracts)
        return cls(contracts, frozenset(facts.secrets), facts.refused)


class _Facts(msgspec.Struct):
    contracts: list[object]
    secrets: list[str]
    refused: bool


_decode = msgspec.json.Decoder(_Facts).decode
