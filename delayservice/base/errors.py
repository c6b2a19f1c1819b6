"""The one error tree. Native errors are wrapped at the edge with ``from exc``.

Every message says what happened, to what, and what to do about it.
"""


class DelayServiceError(Exception):
    """Root of everything this project raises on purpose."""


class SettingsError(DelayServiceError):
    """A setting is unknown, out of bounds or contradicts another one."""


class InvalidRequestError(DelayServiceError, ValueError):
    """A caller of the client library asks for what the service can't do; nothing was written."""


class StoreError(DelayServiceError):
    """A store can't go on: a failed fsync, a folder in use, a format from the future."""


class SlotDamagedError(StoreError):
    """Stored frames are missing or damaged and were put in quarantine.

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
    """Kafka refused or failed something; the text carries the broker's own words."""


class LogTruncatedError(KafkaEdgeError):
    """A log no longer holds what was read of it: its end was lost, and it has grown again.

    ``is_stored``: what is gone from the log may be in the store, which has to start over.
    """

    def __init__(self, why: str, *, is_stored: bool) -> None:
        super().__init__(why)
        self.is_stored = is_stored


class TransactionAbortedError(KafkaEdgeError):
    """The transaction was aborted for certain; nothing of it is visible. Settle the batch again.

    ``stuck``: slices whose checkpoints were not acknowledged in time, while others were.
    """

    def __init__(self, why: str, stuck: frozenset[int] = frozenset()) -> None:
        super().__init__(why)
        self.stuck = stuck


class RefusedError(KafkaEdgeError):
    """Some outputs can't be written; the transaction that held them is aborted, or has to be.

    ``refusals`` maps ``((delay topic, partition), source offset)`` to ``(code, detail)``: settle
    those their own way, and the rest again.
    """

    def __init__(self, refusals: dict[tuple[tuple[str, int], int], tuple[str, str]]) -> None:
        ((topic, partition), offset), (code, detail) = next(iter(refusals.items()))
        super().__init__(
            f"{len(refusals)} records were refused, first {topic}:{partition} offset {offset}: "
            f"{code} ({detail})"
        )
        self.refusals = refusals


class OwnershipLostError(KafkaEdgeError):
    """Fenced, or the outcome of a commit is unknown: give the writer up and claim anew."""


class WriterGivenUpError(OwnershipLostError):
    """The sink gave its writer up by itself, with every commit answered: open another at once."""


class ClusterError(DelayServiceError):
    """The embedded cluster could not be resolved, started or stopped."""
