"""The one error tree. Native errors are wrapped at the edge with ``from exc``.

Every message says what happened, to what, and what to do about it.
"""


class DelayServiceError(Exception):
    """Base class of all errors that this project raises on purpose."""


class SettingsError(DelayServiceError):
    """A setting that is unknown, out of bounds, or contradicts another one."""


class InvalidRequestError(DelayServiceError, ValueError):
    """A request of the client library that the service can't fulfil; nothing was written."""


class StoreError(DelayServiceError):
    """A store that can't be used: a failed fsync, a folder in use, a format of a newer version."""


class SlotDamagedError(StoreError):
    """Stored frames that are missing, or damaged and in quarantine.

    The caller reads the source offsets ``[first_offset, stop_offset)`` again and hands every
    record whose key falls in ``[start_ms, stop_ms)`` to ``Store.rebuild``.
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
    """An operation that Kafka refused or failed; the message quotes the broker's text."""


class LogTruncatedError(KafkaEdgeError):
    """A log that lost its end after it was read, and has grown again.

    ``is_stored``: the store may hold records that the log has lost, and must be rebuilt.
    """

    def __init__(self, why: str, *, is_stored: bool) -> None:
        super().__init__(why)
        self.is_stored = is_stored


class TransactionAbortedError(KafkaEdgeError):
    """A transaction that was certainly aborted: no output is visible. Settle the batch again.

    ``stuck``: slices whose checkpoints were not acknowledged in time, while others were.
    """

    def __init__(self, why: str, stuck: frozenset[int] = frozenset()) -> None:
        super().__init__(why)
        self.stuck = stuck


class RefusedError(KafkaEdgeError):
    """Outputs that can't be written; their transaction was aborted, or must be aborted now.

    ``refusals`` maps ``((delay topic, partition), source offset)`` to ``(code, detail)``. Settle
    these records by their code, and all others of the transaction again.
    """

    def __init__(self, refusals: dict[tuple[tuple[str, int], int], tuple[str, str]]) -> None:
        ((topic, partition), offset), (code, detail) = next(iter(refusals.items()))
        super().__init__(
            f"{len(refusals)} records were refused, first {topic}:{partition} offset {offset}: "
            f"{code} ({detail})"
        )
        self.refusals = refusals


class OwnershipLostError(KafkaEdgeError):
    """A writer (transactional id) that is fenced, or a commit with an unknown outcome. Open a new
    writer and claim its slices.
    """


class WriterGivenUpError(OwnershipLostError):
    """A writer (transactional id) that was given up, and whose commits all have a known outcome.
    Open a new writer at once.
    """


class ClusterError(DelayServiceError):
    """An embedded or tested cluster that could not be resolved, started, read or stopped."""
