"""Load process: sends records as any producer would, with plain confluent-kafka and plain headers.

``python -m delay_devtools.bench.load_process``, with a ``LoadPlan`` on standard input.
"""

from __future__ import annotations

import random
import time
from queue import SimpleQueue
from typing import Final, cast

import msgspec
from confluent_kafka import Producer

from connectors.kafka.clients import produce_patiently
from delay_devtools import clients
from delay_devtools.bench import wire
from delay_devtools.bench.peers import clients as peers
from delay_devtools.bench.tally import HEAD, KEYS, Batch, keys
from delay_devtools.clients import Headers

# Number of records sent between two readings of the clock, if the load has no rate limit.
_CHUNK: Final = 2_000
_SLICE_S: Final = 0.002
_FLUSH_TIMEOUT_S: Final = 120.0
_TRANSACTION_TIMEOUT_S: Final = 60.0


class Due(msgspec.Struct, frozen=True):
    """Due times of a load: a first due time (0: the moment of sending plus ``after_ms``) plus a
    random part of ``span_ms``.
    """

    from_ms: int = 0
    span_ms: int = 0
    after_ms: int = 0


_EXPIRES_MS: Final = 86_400_000


class LoadPlan(msgspec.Struct, frozen=True):
    """Records that a load process sends, and how it sends them.

    Attributes:
        client: librdkafka options of a producer, or options of ``bench.peers.clients``.
        rate_per_s: records per second; 0: no limit.
        is_full: whether every record has an id and an expiry.
        is_open: whether the word ``stop`` ends the load before the end of the batch.
        transactional_id: id of one transaction for all records, which stays open until the word
            ``show``, so that no consumer reads them before; empty: no transaction.
    """

    client: dict[str, str]
    topic: str
    target: str
    batch: Batch
    due: Due
    rate_per_s: float = 0.0
    is_open: bool = False
    is_level: bool = False
    is_full: bool = False
    transactional_id: str = ""


def load(plan: LoadPlan) -> None:
    errors: list[str] = []
    if "bootstrap.servers" in plan.client:
        peer = None
        producer = clients.producer(plan.client, plan.transactional_id, errors)
    else:
        peer = peers.producer(plan.client, plan.topic)
        producer = cast("Producer", peer)
    if plan.transactional_id:
        producer.init_transactions(_TRANSACTION_TIMEOUT_S)
        producer.begin_transaction()
    else:
        producer.list_topics(plan.topic, timeout=30)
    wire.tell(wire.READY)
    wire.await_word(wire.GO)
    started_s = time.time()
    words = wire.listen() if plan.is_open else None
    sent = _Loader(plan, producer, words).run()
    _settle(producer, errors, peer)
    wire.tell(wire.DONE, sent, at_s=time.time() - started_s)
    if plan.transactional_id:
        _show(producer)
    if peer is not None:
        wire.tell(wire.TRACE, peer.resent)


def _settle(producer: Producer, errors: list[str], peer: peers.PeerProducer | None) -> None:
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if left:
        reason = f": {peer.last_error}" if peer is not None and peer.last_error else ""
        errors.append(
            f"{left} records were not acknowledged within {_FLUSH_TIMEOUT_S:.0f} s{reason}"
        )
    if errors:
        wire.tell(wire.FAILED, why=f"{len(errors)} records were not sent: {errors[0]}")


def _show(producer: Producer) -> None:
    # The time is that right before the commit makes the records visible.
    wire.await_word(wire.SHOW)
    at_s = time.time()
    producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
    wire.tell(wire.COMPLETE, at_s=at_s)


class _Loader:
    def __init__(
        self, plan: LoadPlan, producer: Producer, words: SimpleQueue[str] | None = None
    ) -> None:
        self._words = words
        self._plan = plan
        self._producer = producer
        self._random = random.Random(plan.batch.seed).random  # noqa: S311 (replays from its seed)
        self._target = ("delay-target-topic", plan.target.encode())
        self._tag = plan.batch.tag_bytes()
        self._filler = plan.batch.filler()
        self._keys = keys()

    def run(self) -> int:
        n, rate = self._plan.batch.n, self._plan.rate_per_s
        started_s = told_s = time.monotonic()
        sent = 0
        while sent < n and (self._words is None or self._words.empty()):
            now_s = time.monotonic()
            stop = sent + _CHUNK if not rate else int((now_s - started_s) * rate) + 1
            stop = min(stop, n)
            if stop > sent:
                self._send(sent, stop)
                sent = stop
            self._producer.poll(0)
            if now_s - told_s > wire.PROGRESS_S:
                told_s = now_s
                wire.tell(wire.PROGRESS, sent)
            if rate:
                time.sleep(_SLICE_S)
        wire.tell(wire.PROGRESS, sent)
        return sent

    def _send(self, start: int, stop: int) -> None:
        due, produce, pack = self._plan.due, self._producer.produce, HEAD.pack
        from_ms = due.from_ms or int(time.time() * 1_000) + due.after_ms
        random_, span_ms, topic = self._random, due.span_ms, self._plan.topic
        target, tag, filler, known_keys = self._target, self._tag, self._filler, self._keys
        is_level, is_full = self._plan.is_level, self._plan.is_full
        for number in range(start, stop):
            due_ms = from_ms + int(random_() * span_ms)
            value = pack(number, due_ms, tag) + filler
            key = known_keys[number % KEYS]
            headers: Headers = [target] if is_level else [("delay-at", b"%d" % due_ms), target]
            if is_full:
                headers.append(("delay-id", b"record-%d" % number))
                headers.append(("delay-expires-at", b"%d" % (due_ms + _EXPIRES_MS)))
            try:
                produce(topic, value, key, headers=headers)
            except BufferError:
                produce_patiently(self._producer, topic, value, key, headers=headers)


if __name__ == "__main__":
    wire.serve(LoadPlan, load)
