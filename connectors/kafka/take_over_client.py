"""Does Kafka's part of a take-over: reads claims back, fences earlier writers, reads checkpoints.

It runs on helper threads; every wait is bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final

import structlog
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import KAFKA, Clients, connect
from connectors.kafka.errors import error_of
from connectors.kafka.log_ends import log_bounds, log_ends, many_bounds
from connectors.kafka.scan import consumer_config, scan_partition
from connectors.kafka.sink import CONNECT_TIMEOUT_S, WriterOptions
from connectors.kafka.topic_facts import topic_ids as ids_of
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.claims import WRITER, Claimed
from delayservice.engine.ports import Bounds, Place

# Number of clients that fence in parallel, as each has threads.
FENCES_AT_ONCE: Final = 8
FENCE_TIMEOUT_S: Final = 20.0
# Time for which the broker must have answered that the transaction of an earlier writer of this
# process is decided, in s: then that counts as a fence.
OWN_FENCE_TIMEOUT_S: Final = 1.0
# Wait for a fence before it is asked for again, in s; it doubles each time.
FENCE_RETRY_S: Final = 0.05
# Longest wait for another writer's open transaction before that writer is fenced, in s.
PATIENCE_S: Final = 1.0
# Longest wait of a take-over for each of its reads, in s.
ANSWER_S: Final = 20.0
_FENCED_MAX: Final = 100_000
_RIGHTS_HINT: Final = "; the service needs Write on the transactional ids of all its nodes"

_log = structlog.get_logger(__name__)


class KafkaTakeOverClient:
    """Kafka's part of a take-over (``ports.TakeOverClient``). Any helper thread may call it."""

    def __init__(
        self,
        options: WriterOptions,
        checkpoints: KafkaCheckpoints,
        admin: AdminClient,
        # Returns which of the given slices this node is certain to own.
        confirm: Callable[[Collection[int]], frozenset[int]],
        clients: Clients = KAFKA,
        # Threads that fence in parallel; None: ``FENCES_AT_ONCE`` threads of its own.
        fencing: Executor | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._admin = admin
        self._options = options
        self._consumer = consumer_config(options.consumer, "take-over")
        self._confirm = confirm
        self._clients = clients
        self._fencing = fencing or ThreadPoolExecutor(FENCES_AT_ONCE, "fence")
        self._me = ""
        # Earlier writers of this process that have not been fenced yet.
        self._given_up: set[str] = set()
        self._fenced: dict[str, None] = {}
        self._lock = threading.Lock()

    def enter(self, writer: str) -> None:
        # The former writer counts as given up.
        if self._me:
            self._given_up.add(self._me)
        self._me = writer
        self._checkpoints.enter(writer)

    def confirm(self, slices: Collection[int]) -> frozenset[int]:
        return self._confirm(slices)

    def newest(self, slice_no: int) -> bytes | None:
        return self._checkpoints.newest(slice_no, ANSWER_S)

    def bounds(self, topic_ids: Mapping[Place, str]) -> Mapping[Place, Bounds]:
        found = many_bounds(self._admin, topic_ids.keys())
        # After the bounds: an id that was replaced never comes back.
        present = ids_of(self._admin, sorted({topic for topic, _ in found}))
        return {p: bounds for p, bounds in found.items() if present.get(p[0]) == topic_ids[p]}

    def await_claims(self, slices: Mapping[int, int]) -> Mapping[int, Claimed]:
        deadline_s = self._clients.monotonic_s() + ANSWER_S
        place, me, stood_at = (self._options.claims_topic, 0), self._me, -1
        while True:
            found = self._checkpoints.await_claims(slices, PATIENCE_S)
            if me != self._me:
                raise KafkaEdgeError("the take-over is out of date: its writer was given up")
            if len(found) == len(slices):
                return found
            if self._clients.monotonic_s() > deadline_s:
                raise KafkaEdgeError(
                    f"own claims of slices {sorted(slices.keys() - found.keys())[:10]} did not "
                    f"come back from {self._options.claims_topic} in {ANSWER_S:.0f} s"
                )
            stood_at = self._fence_blocker(place, stood_at)

    def fence(self, writers: Collection[str]) -> None:
        wanted = [writer for writer in sorted(writers) if writer not in self._fenced]
        if not wanted:
            return
        if self._me in wanted:  # a job of an earlier writer that comes late
            raise KafkaEdgeError("the take-over is out of date: its writer was given up meanwhile")
        for _ in self._fencing.map(self._fence_one, wanted):
            pass

    def _fence_one(self, writer: str) -> None:
        started_s = self._clients.monotonic_s()
        is_own = writer in self._given_up
        try:
            self._init_patiently(writer, is_own=is_own)
        except KafkaException as exc:
            error = error_of(exc)
            # The transaction of that writer is decided, but a partition takes no marker: perhaps
            # for hours, if a target has too few copies in sync. This process begins no other
            # transaction with that writer, so there is nothing more to fence.
            is_decided = error.code() == KafkaError.CONCURRENT_TRANSACTIONS
            if not (is_own and is_decided):
                is_forbidden = error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                hint = _RIGHTS_HINT if is_forbidden else ""
                raise KafkaEdgeError(f"writer {writer} could not be fenced: {error}{hint}") from exc
        with self._lock:
            self._given_up.discard(writer)
            self._fenced[writer] = None
            if len(self._fenced) > _FENCED_MAX:
                del self._fenced[next(iter(self._fenced))]
        took_ms = round((self._clients.monotonic_s() - started_s) * 1000)
        _log.info("writer_fenced", writer=writer, took_ms=took_ms)

    def _init_patiently(self, writer: str, *, is_own: bool) -> None:
        # The broker answers CONCURRENT_TRANSACTIONS until it has aborted the writer's transaction,
        # which takes milliseconds. The client asks again after half a second, and has no setting
        # for that, but asks at once when it is called again.
        producer = self._producer(writer)
        # Once it is connected: on a slow link that takes more than ``OWN_FENCE_TIMEOUT_S``.
        begun_s = decided_s = self._clients.monotonic_s()
        wait_s = FENCE_RETRY_S
        while True:
            try:
                producer.init_transactions(wait_s)
            except KafkaException as exc:
                error, now_s = error_of(exc), self._clients.monotonic_s()
                if is_own and error.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                    left_s = decided_s + OWN_FENCE_TIMEOUT_S - now_s
                else:
                    decided_s, left_s = now_s, begun_s + FENCE_TIMEOUT_S - now_s
                if left_s <= 0 or not error.retriable():
                    raise
                # A slow broker may need longer for its answer, and none answers within what is left
                # of a millisecond.
                wait_s = max(wait_s, min(2 * wait_s, left_s))
            else:
                return

    def _producer(self, writer: str) -> Producer:
        producer = self._clients.producer(self._options.transactional(writer))
        connect(producer, self._options.claims_topic, CONNECT_TIMEOUT_S)
        return producer

    def read_to_end(self, slices: Collection[int]) -> Mapping[int, bytes | None]:
        # Writers whose open transactions block reading are fenced.
        deadline_s = self._clients.monotonic_s() + ANSWER_S
        numbers = {self._options.checkpoint_partition(slice_no) for slice_no in slices}
        places = [(self._options.checkpoint_topic, number) for number in sorted(numbers)]
        ends = log_ends(self._admin, places)
        for place in places:
            if place not in ends:
                raise KafkaEdgeError(f"the end of {place[0]}:{place[1]} can't be asked")
            stood_at = -1
            while not self._checkpoints.await_position(place, ends[place], PATIENCE_S):
                if self._clients.monotonic_s() > deadline_s:
                    raise KafkaEdgeError(
                        f"{place[0]}:{place[1]} could not be read to its end in {ANSWER_S:.0f} s"
                    )
                stood_at = self._fence_blocker(place, stood_at, ends[place])
        return {n: self._checkpoints.newest(n, ANSWER_S) for n in slices}

    def _fence_blocker(self, place: Place, stood_at: int, goal: int | None = None) -> int:
        """Fence the writer whose open transaction blocks reading a partition, if the last stable
        offset, where that transaction's first record is, has not moved since the previous call,
        which returned ``stood_at`` (-1: there was none). Return the last stable offset if it is
        below ``goal`` (None: the high watermark), else -1.
        """
        # A transaction of this worker's own writer ends by itself.
        stable = log_bounds(self._admin, *place, IsolationLevel.READ_COMMITTED).end
        end = log_bounds(self._admin, *place).end
        if stable >= (end if goal is None else goal):
            return -1
        if stable == stood_at:
            writer = self._writer_at(place, stable, end)
            if writer is not None and writer != self._me:
                _log.warning("writer_blocks", writer=writer, topic=place[0], partition=place[1])
                if writer in self._fenced:
                    self._end_hanging(writer, place)
                else:
                    self.fence([writer])
        return stable

    def _end_hanging(self, writer: str, place: Place) -> None:
        # Its transaction has ended, and the log has lost the marker (an unclean leader election).
        # The marker of another one of that writer, which is aborted, ends it there too.
        try:
            producer = self._producer(writer)
            producer.init_transactions(FENCE_TIMEOUT_S)
            producer.begin_transaction()
            producer.produce(place[0], key=b"", partition=place[1])
            producer.flush(FENCE_TIMEOUT_S)
            producer.abort_transaction(FENCE_TIMEOUT_S)
        except KafkaException as exc:
            what = f"a transaction of {writer} hangs in {place[0]}:{place[1]}"
            raise KafkaEdgeError(f"{what}, and could not be ended: {error_of(exc)}") from exc
        _log.warning("hanging_ended", writer=writer, topic=place[0], partition=place[1])

    def _writer_at(self, place: Place, offset: int, end: int) -> str | None:
        config: dict[str, Any] = self._consumer | {"isolation.level": "read_uncommitted"}
        for run in scan_partition(config, *place, offset, end, self._clients):
            for row in run.rows:
                named = dict(row[4] or ()).get(WRITER)
                return None if named is None else named.decode(errors="replace")
        return None
