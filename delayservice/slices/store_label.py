from __future__ import annotations

import structlog

from delayservice.contract.contracts import Contract, ContractError, Contracts
from delayservice.engine.label import Label
from delayservice.engine.losses import Gap
from delayservice.engine.ports import Place
from delayservice.slices.log_proof import LogProof
from delayservice.store.base import DeliveryStore

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

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return () if self.known is None else self.known.gaps

    def write(
        self,
        contracts: Contracts,
        *,
        has_refused: bool | None = None,
        gaps: tuple[Gap, ...] | None = None,
    ) -> None:
        """Write the label with the last record read; None leaves a value unchanged."""
        self.known = Label(
            contracts,
            self.fingerprints,
            self.has_refused if has_refused is None else has_refused,
            self.gaps if gaps is None else gaps,
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
