"""The label that a store keeps: contracts, secrets and log by which its records were read.

One JSON object::

    {"contracts": […], "secrets": ["9f0c…"], "refused": false,
     "last": [leader_epoch, offset], "read_to": offset, "epochs": [[leader_epoch, offset], …]}

``last``, ``read_to`` and ``epochs`` are missing if they are not known. A store with a label of an
earlier format, a list of contracts, is rebuilt, because its secret is not known.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec
import structlog

from delayservice.contract.contracts import Contract, ContractError, Contracts
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.ports import Place
from delayservice.slices.log_proof import LogProof
from delayservice.store.base import DeliveryStore


class Label(msgspec.Struct, frozen=True, rename={"has_refused": "refused"}):
    """Contracts, fingerprints of secrets and log by which a store's records were read.

    ``has_refused``: a requeued record is missing because none of the secrets signed it.
    ``last`` reveals a truncation of the log; no
    record lies between it and ``read_to``. ``epochs`` has the first record of each leader epoch,
    noted before a record of it is stored.
    """

    contracts: Contracts
    secrets: frozenset[str]
    has_refused: bool
    last: LastRead = NOTHING_READ
    read_to: int = 0
    epochs: tuple[LastRead, ...] = ()

    def doubt(self, stop: int, contracts: Contracts, secrets: AbstractSet[str]) -> str:
        """Return why the log below ``stop`` would be read differently now, as text; empty: it
        would not. ``secrets`` are fingerprints.
        """
        if not self.contracts.agree_below(stop, contracts):
            return "stored by other parameters"
        if self.has_refused and not secrets <= self.secrets:
            return "stored without a cluster secret that this node has now"
        return ""

    def encode(self) -> bytes:
        return msgspec.json.encode(
            {
                "contracts": self.contracts.to_json(),
                "secrets": sorted(self.secrets),
                "refused": self.has_refused,
                **({"last": self.last, "read_to": self.read_to} if self.last.offset >= 0 else {}),
                **({"epochs": self.epochs} if self.epochs else {}),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Label:
        """Return the label that ``encode`` wrote; raise ``ContractError`` if this version can't
        follow it.
        """
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ContractError(f"a store's label can't be read: {exc}") from exc


def _contracts(_: type, data: object) -> Contracts:
    return Contracts.from_json(data)


_decode = msgspec.json.Decoder(Label, dec_hook=_contracts).decode


_log = structlog.get_logger(__name__)


class StoreLabel:
    """Reader and writer of a store's label. New contracts are written to it before records are
    read by them. ``known`` None: it is unknown how the store was filled.
    """

    def __init__(
        self, store: DeliveryStore, place: Place, fingerprints: frozenset[str], proof: LogProof
    ) -> None:
        self.known = _label_of(store.label)
        self.fingerprints = fingerprints
        self._store = store
        self._place = place
        self._proof = proof
        if self.known is not None:
            proof.restore(self.known.last, self.known.read_to, self.known.epochs)

    @property
    def contracts(self) -> Contracts:
        return self.known.contracts if self.known else Contracts([(0, Contract())])

    @property
    def has_refused(self) -> bool:
        return self.known is not None and self.known.has_refused

    def write(self, contracts: Contracts, *, has_refused: bool | None = None) -> None:
        """Write the label with the last record read. ``has_refused`` None: unchanged."""
        self.known = Label(
            contracts,
            self.fingerprints,
            self.has_refused if has_refused is None else has_refused,
            *self._proof.position,
            self._proof.epochs,
        )
        self._store.set_label(self.known.encode())

    def is_read_otherwise(self, stored: int, contracts: Contracts) -> bool:
        """Return whether records below ``stored`` would be read otherwise now, or whether that
        is unknown; log a warning if so.
        """
        if stored == 0:
            return False
        why = "stored by unknown parameters"
        if self.known is not None:
            why = self.known.doubt(stored, contracts, self.fingerprints)
        if not why:
            return False
        topic, partition = self._place
        _log.warning(
            "contract_changed",
            topic=topic,
            partition=partition,
            stored=stored,
            why=why,
            hint="the stored records were read by other settings; the store is rebuilt from Kafka",
        )
        return True


def _label_of(label: bytes) -> Label | None:
    try:
        return Label.decode(label)
    except ContractError:
        return None
