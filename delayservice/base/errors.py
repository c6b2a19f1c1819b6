"""All errors of this project, in one tree. An error of a library is wrapped where the library is
called, with ``from exc``.

Every message says what happened, to what, and what to do about it.
"""


class DelayServiceError(Exception):
    """Base class of all errors that this project raises on purpose."""


class SettingsError(DelayServiceError):
    """A setting that is unknown, out of bounds, or contradicts another one."""


class InvalidRequestError(DelayServiceError, ValueError):
    """Call of the client library that the service can't fulfil; nothing was written."""


class StoreError(DelayServiceError):
    """Failure of a store: a failed fsync, a folder that is in use, a format of a newer version."""


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


class TransactionAbortedError(KafkaEdgeError):
    """Transaction that was certainly aborted, so that no output is visible. Settle its records
    again.

    ``stuck``: slices whose checkpoints were not acknowledged in time, while those of other slices
    were.
    """

    def __init__(self, why: str, stuck: frozenset[int] = frozenset()) -> None:
        super().__init__(why)
        self.stuck = stuck


class RefusedError(KafkaEdgeError):
    """Outputs that can never be written; their transaction was aborted.

    ``refusals`` maps ``((delay topic, partition), source offset)`` of a record to ``(code,
    detail)``: code and sentence of its dead letter. Dead-letter these records, and settle the
    transaction's other records again.
    """

    def __init__(self, refusals: dict[tuple[tuple[str, int], int], tuple[str, str]]) -> None:
        ((topic, partition), offset), (code, detail) = next(iter(refusals.items()))
        super().__init__(
            f"{len(refusals)} records were refused, first {topic}:{partition} offset {offset}: "
            f"{code} ({detail})"
        )
        self.refusals = refusals


class OwnershipLostError(KafkaEdgeError):
    """Writer (transactional id) that is fenced, or whose last commit has an unknown outcome. Open a
    new writer and claim its slices.
    """


class WriterGivenUpError(OwnershipLostError):
    """Writer (transactional id) that was given up, and whose commits all have a known outcome. Open
    a new writer at once.
    """


class ClusterError(DelayServiceError):
    """Cluster whose state prevents a check, such as a missing topic or a record that was not
    acknowledged.
    """
