"""The label that a store keeps: contracts, secrets and log by which its records were read.

One JSON object::

    {"contracts": […], "secrets": ["9f0c…"], "refused": false, "gaps": [[first, stop, below], …],
     "last": [leader_epoch, offset], "read_to": offset, "epochs": [[leader_epoch, offset], …]}

``gaps`` is missing if there are none, ``last``, ``read_to`` and ``epochs`` if they are not known. A
store with a label of an earlier format, a list of contracts, is rebuilt, because its secret is not
known.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from delayservice.contract.contracts import ContractError, Contracts
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.losses import Gap


class Label(msgspec.Struct, frozen=True, rename={"has_refused": "refused"}):
    """Label that a store keeps: contracts and secrets by which its records were read.

    Attributes:
        contracts: the parameters on which the keys of its records depend (design rule 2).
        secrets: fingerprints of the secrets by which requeued records were verified.
        has_refused: whether a requeued record was read, and not stored, because none of these
            secrets signed it.
        gaps: ranges of offsets that retention had deleted before they were read.
        last: the last record that was read, by which a truncation of the log is detected.
        read_to: offset up to which the log was read; no record lies between it and ``last``.
        epochs: the first record of each leader epoch; an epoch is noted before a record of it is
            stored.
    """

    contracts: Contracts
    secrets: frozenset[str]
    has_refused: bool
    gaps: tuple[Gap, ...] = ()
    last: LastRead = NOTHING_READ
    read_to: int = 0
    epochs: tuple[LastRead, ...] = ()

    def doubt(self, stop: int, contracts: Contracts, secrets: AbstractSet[str]) -> str:
        """Return as text why ``contracts`` and ``secrets`` (fingerprints) would read the log below
        offset ``stop`` differently from what the store holds; empty: they would not.
        """
        if not self.contracts.agree_below(stop, contracts):
            return "stored by other parameters"
        if self.has_refused and not secrets <= self.secrets:
            return "stored without a cluster secret that this node has now"
        return ""

    def encode(self) -> bytes:
        """Return the bytes of the label, as a store keeps them."""
        return msgspec.json.encode(
            {
                "contracts": self.contracts.to_json(),
                "secrets": sorted(self.secrets),
                "refused": self.has_refused,
                **({"gaps": self.gaps} if self.gaps else {}),
                **({"last": self.last, "read_to": self.read_to} if self.last.offset >= 0 else {}),
                **({"epochs": self.epochs} if self.epochs else {}),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Label:
        """Return the label in the bytes that ``Label.encode`` returned.

        Raises:
            ContractError: the bytes are no label, or a label that this version can't follow.
        """
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ContractError(f"a store's label can't be read: {exc}") from exc


def _contracts(_: type, data: object) -> Contracts:
    return Contracts.from_json(data)


_decode = msgspec.json.Decoder(Label, dec_hook=_contracts).decode
