"""Reads the dead-letter topic, and replays dead letters in transactions.

To *replay* a dead letter is to write its record to its delay topic again. In the same transaction a
*marker* is written to the letter's partition of the dead-letter topic, a record with the offsets of
the replayed letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Final, Self, TypeAlias

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import (
    CoordinatorLog,
    KafkaAdmin,
    connection_failure,
    flush,
    produce_patiently,
    producer_client,
)
from connectors.kafka.errors import FENCED, PURGED, Meaning, error_of, meaning_of
from connectors.kafka.log_ends import log_bounds
from connectors.kafka.scan import consumer_config, scan_partition
from connectors.kafka.target_limits import RECORD_BYTES_MAX
from connectors.kafka.topic_facts import list_topics
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.settings import Settings
from delayservice.contract.entry import NewRecord, PolledRecord
from delayservice.contract.replays import (
    DeadLetter,
    bytes_of,
    marker,
    read_letter,
    replayed_offsets,
)

# Number of offsets of each partition that a survey reads first: few, so that the newest letters are
# seen even if they are large.
FIRST_LOOK: Final = 2
# Factor by which each read of a survey covers more offsets than the read before it.
_MORE: Final = 16

INIT_TIMEOUT_S: Final = 60.0
COMMIT_TIMEOUT_S: Final = 30.0
ABORT_TIMEOUT_S: Final = 10.0
TRANSACTION_TIMEOUT_MS: Final = 45_000

_NOT_REPLAYED: Final = "this batch was not replayed"

# Partition and offset in the dead-letter topic.
LetterPosition: TypeAlias = tuple[int, int]
# A dead letter, and the record to write for it.
Replay: TypeAlias = tuple[DeadLetter, NewRecord]
# Function that is called with the number of offsets just read.
Advance: TypeAlias = Callable[[int], None]

READ_COMMITTED: Final = IsolationLevel.READ_COMMITTED
READ_UNCOMMITTED: Final = IsolationLevel.READ_UNCOMMITTED


def partition_counts(admin: KafkaAdmin) -> dict[str, int]:
    topics = list_topics(admin).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}


@dataclass(frozen=True, slots=True)
class Survey:
    """The newest dead letters, and how much of the topic was read for them."""

    # The letters, newest first.
    letters: list[DeadLetter]
    # Partition and offset of replayed letters, as far as their markers were read.
    replayed: frozenset[LetterPosition]
    # Number of offsets that the dead-letter topic holds.
    held: int
    # Number of offsets that were read, beginning at the end of each partition.
    looked_at: int


class DeadLetterTopic:
    """Reader of the dead-letter topic up to its end at the time of construction, read committed.

    ``last``: read only the last offsets of each partition; ``since``: only those of one partition,
    from this one on. Unless ``last`` is given, reading waits for open transactions below that end:
    a replay that was just committed must be seen, even behind an open transaction of the service.
    """

    def __init__(
        self,
        topic: str,
        partitions: int,
        client: Mapping[str, str],
        admin: AdminClient,
        last: int | None = None,
        since: LetterPosition | None = None,
    ) -> None:
        self._topic = topic
        self._since = since
        self._config = consumer_config(client, "dlq")
        isolation = READ_UNCOMMITTED if last is None else READ_COMMITTED
        whole = [log_bounds(admin, topic, p, isolation)[:2] for p in range(partitions)]
        self.held = sum(end - start for start, end in whole)
        self._bounds = [
            (start if last is None else max(start, end - last), end) for start, end in whole
        ]
        if since is not None:
            self._bounds = [
                (min(max(start, since[1]), end) if number == since[0] else end, end)
                for number, (start, end) in enumerate(whole)
            ]

    @property
    def length(self) -> int:
        return sum(end - start for start, end in self._bounds)

    def replayed(self, advance: Advance) -> frozenset[LetterPosition]:
        return frozenset(
            (partition, offset)
            for partition, row in self._all(advance)
            for offset in replayed_offsets(row)
        )

    def survey(self, code: str | None, bytes_max: int) -> Survey:
        """Return the newest letters (``code`` None: with any code), and which of them were
        replayed. Ranges of offsets are read backwards from the end of each partition; the one in
        which ``bytes_max`` bytes of records are exceeded is the last, and is left out.
        """
        letters: list[DeadLetter] = []
        replayed: set[LetterPosition] = set()
        looked_at = 0
        for partition, offsets, rows in self._newest(bytes_max):
            looked_at += offsets
            for row in rows:
                replayed.update((partition, offset) for offset in replayed_offsets(row))
                letter = read_letter(partition, row)
                if letter is not None and code in (None, letter.code):
                    letters.append(letter)
        letters.sort(key=lambda letter: (letter.time_ms, letter.place), reverse=True)
        return Survey(letters, frozenset(replayed), self.held, looked_at)

    def _newest(self, bytes_max: int) -> Iterator[tuple[int, int, list[PolledRecord]]]:
        """Yield partition, number of offsets and records of each range that ``survey`` reads: of
        all partitions in turn, in rounds of larger ranges.
        """
        stops = [end for _, end in self._bounds]
        size, left = FIRST_LOOK, bytes_max
        while any(stop > start for stop, (start, _) in zip(stops, self._bounds, strict=True)):
            for partition, (start, _) in enumerate(self._bounds):
                stop = stops[partition]
                first = stops[partition] = max(start, stop - size)
                rows = []
                for row in self._rows(partition, first, stop):
                    left -= bytes_of(row)
                    if left < 0:
                        return
                    rows.append(row)
                yield partition, stop - first, rows
            size *= _MORE

    def letters(self, advance: Advance) -> Iterator[DeadLetter]:
        for partition, row in self._all(advance):
            letter = read_letter(partition, row)
            if letter is not None:
                yield letter

    def first(self) -> tuple[DeadLetter | None, bool]:
        """Return the letter at ``since``, if there is one, and whether it was replayed."""
        letter, is_replayed = None, False
        for partition, row in self._all(lambda _: None):
            if (partition, row[0]) == self._since:
                letter = read_letter(partition, row)
            marked = [(partition, offset) for offset in replayed_offsets(row)]
            is_replayed = is_replayed or self._since in marked
        return letter, is_replayed

    def _all(self, advance: Advance) -> Iterator[tuple[int, PolledRecord]]:
        for partition, (start, end) in enumerate(self._bounds):
            for run in scan_partition(self._config, self._topic, partition, start, end):
                for row in run.rows:
                    yield partition, row
                advance(run.stop - run.start)

    def _rows(self, partition: int, start: int, stop: int) -> Iterator[PolledRecord]:
        for run in scan_partition(self._config, self._topic, partition, start, stop):
            yield from run.rows


def replayer_of(settings: Settings) -> Replayer:
    transactional_id = f"{settings.kafka.transactional_id_prefix}-dlq-replay"
    return Replayer(
        settings.topics.dead_letter, transactional_id, settings.kafka.client_config("producer")
    )


class Replayer:
    """A context that replays dead letters in transactions, which also write the markers.

    A cluster has one replay at a time: a second one with the same transactional id fences the
    first.
    """

    def __init__(self, topic: str, transactional_id: str, client: Mapping[str, str]) -> None:
        self._topic = topic
        self._id = transactional_id
        self._log = CoordinatorLog()
        self._producer = producer_client(
            {
                "message.max.bytes": RECORD_BYTES_MAX,  # the topic decides, not the client
                "message.timeout.ms": 30_000,
                **client,
                # One record a batch: what the broker refuses is that record, and no other.
                "batch.num.messages": 1,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "acks": "all",
                **self._log.options,
            }
        )
        self._open = False

    def __enter__(self) -> Self:
        # Fences earlier replays, which aborts their open transactions.
        with self._telling("nothing was replayed"):
            self._producer.init_transactions(INIT_TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Consumers of the delay topics would wait for the open transaction.
        if self._open:
            with suppress(KafkaException):  # the broker ends it when its time is over
                self._producer.abort_transaction(ABORT_TIMEOUT_S)

    def replay(self, replays: Sequence[Replay]) -> dict[LetterPosition, str]:
        """Write replays and their markers in one transaction. Return the broker's reason for each
        record that it refused; those are left out of the transaction. ``KafkaEdgeError``: no record
        was written, or it is unknown whether they were; the text says which.
        """
        refused: dict[LetterPosition, str] = {}
        while True:
            rest = [replay for replay in replays if replay[0].place not in refused]
            found = self._attempt(rest) if rest else {}
            if not found:
                return refused
            refused |= found

    def _attempt(self, replays: Sequence[Replay]) -> dict[LetterPosition, str]:
        refused: dict[LetterPosition, str] = {}
        failures: list[KafkaError] = []

        def note(
            place: LetterPosition | None, error: KafkaError | None, _message: Message | None
        ) -> None:
            # Without ``place``, the record is a marker, which must succeed.
            if error is None or error.code() in PURGED or error.code() == KafkaError._STATE:  # noqa: SLF001
                return
            if place is not None and meaning_of(error) in {Meaning.REFUSED, Meaning.UNSUITED}:
                refused[place] = error.str()
            else:
                failures.append(error)

        failure = connection_failure(self._producer, self._log)
        if failure:  # what it has sent last may come late, and end this transaction
            raise KafkaEdgeError(
                "the connection to the transaction coordinator has failed; run the replay again, "
                f"which goes on where it was: {failure}"
            )
        with self._telling(_NOT_REPLAYED):
            self._producer.begin_transaction()
            self._open = True
            for letter, record in replays:
                self._produce(record, partial(note, letter.place))
            for partition, group in groupby(replays, lambda replay: replay[0].partition):
                headers = marker([letter.offset for letter, _ in group])
                record = NewRecord(self._topic, partition, None, None, headers)
                self._produce(record, partial(note, None))
            if flush(self._producer, COMMIT_TIMEOUT_S):
                failures.append(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
            if not refused and not failures:
                self._commit()
                return {}
            self._abort()
            if not refused:
                raise KafkaException(failures[0])
        return refused

    def _produce(
        self, record: NewRecord, note: Callable[[KafkaError | None, Message | None], None]
    ) -> None:
        topic, number, key, value, headers = record
        try:
            produce_patiently(
                self._producer, topic, value, key, number, headers=headers, on_delivery=note
            )
        except KafkaException as exc:
            error = error_of(exc)
            if error.code() in FENCED or error.fatal():
                raise
            note(error, None)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(COMMIT_TIMEOUT_S)
        except KafkaException as exc:
            if error_of(exc).txn_requires_abort():
                self._abort()
                raise
            self._open = False  # an abort could hit a commit that is on its way
            unknown = "the last batch may or may not be replayed; run it again, which is exact"
            raise self._failure(unknown, error_of(exc)) from exc
        self._open = False

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(COMMIT_TIMEOUT_S)
        finally:
            self._open = False

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as exc:
            raise self._failure(what, error_of(exc)) from exc

    def _failure(self, what: str, error: KafkaError) -> KafkaEdgeError:
        why = f" (transactional id {self._id}): {error.str()} ({error.name()})"
        if error.code() in FENCED:
            why = f": another replay has taken over (transactional id {self._id})"
        return KafkaEdgeError(what + why)
