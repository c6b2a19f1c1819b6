"""Label of a lane's store, a record in the store that names the contracts and secrets by which its
records were read.
"""

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
    """Reader and writer of the label, which is written before new contracts are used.

    Attributes:
        known: the label; None: it is unknown how the store was filled.
        fingerprints: fingerprints of the secrets by which this process verifies requeued records.
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
            proof.restore(self.known.last, self.known.read_to)

    @property
    def contracts(self) -> Contracts:
        """Return the contracts of the label; without a label, the default one."""
        return self.known.contracts if self.known else Contracts([(0, Contract())])

    @property
    def has_refused(self) -> bool:
        """Return whether the store lacks a requeued record whose signing secret is unknown here."""
        return self.known is not None and self.known.has_refused

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Return the offsets that the log had lost before they could be stored."""
        return () if self.known is None else self.known.gaps

    def write(
        self,
        contracts: Contracts,
        *,
        has_refused: bool | None = None,
        gaps: tuple[Gap, ...] | None = None,
    ) -> None:
        """Write the label. ``has_refused``, ``gaps``: None leaves the value unchanged."""
        self.known = Label(
            contracts,
            self.fingerprints,
            self.has_refused if has_refused is None else has_refused,
            self.gaps if gaps is None else gaps,
            *self._proof.position,
        )
        self._store.set_label(self.known.encode())

    def is_read_otherwise(self, stored: int, contracts: Contracts) -> bool:
        """Return whether ``contracts`` would read stored records in another way, and log it."""
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
    """Decode a label; None: it is empty, or another version wrote it. The store is left as it is
    until there are contracts to compare it with.
    """
    try:
        return Label.decode(label)
    except ContractError:
        return None
