"""All errors of this project, in one tree. An error of a library is wrapped where the library is
called, with ``from exc``.

Every message says what happened, to what, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class DelayServiceError(Exception):
    """Base class of all errors that this project raises on purpose."""


class SettingsError(DelayServiceError):
    """A setting that is unknown, out of bounds, or contradicts another one."""


class InvalidRequestError(DelayServiceError, ValueError):
    """Call of the client library that the service can't fulfil; nothing was written."""


class StoreError(DelayServiceError):
    """Failure of a store: a failed fsync, a folder that is in use, a format of a newer version."""


class StoreDamagedError(StoreError):
    """Store whose files are damaged: its node starts it over from the log."""


class SlotDamagedError(StoreError):
    """Records of a store that are missing, or damaged and moved to quarantine.

    The caller reads the source offsets ``[first_offset, stop_offset)`` again, and passes every
    record whose key falls in ``[start_ms, stop_ms)``, epoch milliseconds, to ``Store.rebuild``.
    """

    def __init__(
        self, reason: str, *, start_ms: int, stop_ms: int, first_offset: int, stop_offset: int
    ) -> None:
        super().__init__(
            f"{reason}: keys [{start_ms}, {stop_ms}) ms are to be read again "
            f"from source offsets [{first_offset}, {stop_offset})"
        )
        self.start_ms = start_ms
        self.stop_ms = stop_ms
        self.first_offset = first_offset
        self.stop_offset = stop_offset


class KafkaEdgeError(DelayServiceError):
    """Operation that Kafka refused or that failed; the message quotes the broker's text."""


class LogTruncatedError(KafkaEdgeError):
    """Partition whose log lost its last records after they were read, and has grown again.

    ``is_stored``: the store may hold records that the log has lost, so it must be rebuilt.
    """

    def __init__(self, why: str, *, is_stored: bool) -> None:
        super().__init__(why)
        self.is_stored = is_stored


class OwnershipLostError(KafkaEdgeError):
    """Writer (transactional id) that can't be used any more: it is fenced, or its last commit has
    an unknown outcome. Open a new writer and claim its slices.
    """


class WriterEndedError(OwnershipLostError):
    """Writer that this node ended itself: its open transaction, if there was one, is not visible,
    and all its commits have a known outcome. Open a new one at once, and settle the records of that
    transaction again.

    Attributes:
        refusals: code and detail of the dead letter of each record that a broker refused for good,
            by ``((delay topic, partition), source offset)``.
        stuck: slices whose checkpoints were not acknowledged in time, while those of other slices
            were.
    """

    def __init__(
        self,
        why: str,
        refusals: Mapping[tuple[tuple[str, int], int], tuple[str, str]] | None = None,
        stuck: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(why)
        self.refusals = refusals or {}
        self.stuck = stuck


class ClusterError(DelayServiceError):
    """Cluster whose state prevents a check, such as a missing topic or a record that was not
    acknowledged.
    """


def nearest(name: str, known: Iterable[str]) -> str | None:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
