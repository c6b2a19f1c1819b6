"""Nodes of a drill: they publish digests of their copies and answer requests for records
(docs/internals/digests.md). A stale copy reports that it has stored only the first half of the
offsets below H.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from delay_devtools import clients
from delay_devtools.drill.history import Life
from delay_devtools.drill.replicas import Frame, ShardCopy
from delay_devtools.drill.wire import HOUR_MS, MINUTE_MS, hash_text, record_hash, to_json
from delay_devtools.drill.writing import CountedWriter, Ends

_LIFE: Final = "2"
_FORMER_LIFE: Final = "1"
_STALE_MS: Final = HOUR_MS
_ROWS: Final = 10_000
_TICK_S: Final = 0.1

# Number of records and sum of their hashes, by start of the hour (epoch milliseconds).
Hours = dict[int, tuple[int, int]]


def publish(life: Life, copies: Sequence[ShardCopy], writer: CountedWriter) -> None:
    place = (life.names.own("digests"), 0)
    for number, copy in enumerate(one for one in copies if one.world == "digests"):
        for key, value in _rows(life, copy, is_silent=number % 2 == 0):
            writer.write(place, key, None if value is None else to_json(value))
    writer.flush()


def _rows(
    life: Life, copy: ShardCopy, *, is_silent: bool
) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    # A silent stale copy does not report that it is behind, but the time of its digest is an hour
    # too early.
    topic, partition = copy.place
    of = f"{copy.node}/{topic}/{partition}"
    said = {
        "v": 1,
        "node": copy.node,
        "topic": topic,
        "topic_id": life.topic_id,
        "partition": partition,
        "life": _LIFE,
        "cut": life.checkpoints[partition],
    }
    sums = _sums(copy)
    first_ms = min(sums, default=life.now_ms // HOUR_MS * HOUR_MS)
    former = {**said, "life": _FORMER_LIFE, "hour_ms": first_ms}
    yield f"h/{of}/{first_ms}".encode(), {**former, "count": 1, "hash": hash_text(1)}
    yield f"h/{of}/{first_ms - HOUR_MS}".encode(), None
    for hour_ms, (count, total) in sums.items():
        hour = {**said, "hour_ms": hour_ms, "count": count, "hash": hash_text(total)}
        yield f"h/{of}/{hour_ms}".encode(), hour
    yield f"c/{of}".encode(), {**said, **_cut(life, copy, sums, is_silent=is_silent)}


def _cut(life: Life, copy: ShardCopy, sums: Hours, *, is_silent: bool) -> dict[str, Any]:
    shard = life.shards[copy.place[1]]
    cut_ms = life.now_ms
    if copy.is_stale and is_silent:
        cut_ms -= _STALE_MS
    count = sum(count for count, _ in sums.values())
    damaged = [
        {
            "start_ms": start_ms,
            "stop_ms": start_ms + MINUTE_MS,
            "first_offset": 0,
            "stop_offset": copy.h,
            "why": "checksum of a block",
        }
        for start_ms in copy.damaged
    ]
    return {
        "cut_ms": cut_ms,
        "k": shard.key,
        "h": shard.h,
        "stored": copy.h // 2 if copy.is_stale else copy.stop,
        "from_ms": copy.from_ms,
        "hours": len(sums),
        "count": count,
        "hash": hash_text(sum(total for _, total in sums.values())),
        "pending": count,
        "behind": copy.is_stale and not is_silent,
        "role": "owner" if copy.node == "n1" else "replica",
        "damaged": damaged,
    }


def _sums(copy: ShardCopy) -> Hours:
    sums: Hours = defaultdict(lambda: (0, 0))
    unread = set(copy.damaged)
    for frame in copy.pending():
        if frame.minute_ms not in unread:
            count, total = sums[frame.hour_ms]
            sums[frame.hour_ms] = (count + 1, total + frame.sum_hash)
    return dict(sorted(sums.items()))


# --- answers -------------------------------------------------------------------------------------


@contextmanager
def answering(bootstrap: str, life: Life, copies: Sequence[ShardCopy]) -> Iterator[None]:
    topic = life.names.own("repairs")
    kept = {(c.node, *c.place): c for c in copies if c.world == "digests"}
    consumer = clients.consumer({"bootstrap.servers": bootstrap}, f"drill-{life.names.run}")
    consumer.assign([TopicPartition(topic, 0, 0)])
    writer = CountedWriter(bootstrap, Ends(), transactional=False)
    over = threading.Event()
    thread = threading.Thread(
        target=_answer_all, args=(consumer, writer, topic, kept, over), name="drill-nodes"
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        consumer.close()


def _answer_all(
    consumer: Consumer,
    writer: CountedWriter,
    topic: str,
    kept: Mapping[tuple[str, str, int], ShardCopy],
    over: threading.Event,
) -> None:
    while not over.is_set():
        for message in consumer.consume(_ROWS, _TICK_S):
            asked = json.loads(message.value() or b"{}") if message.error() is None else {}
            copy = kept.get((asked.get("node"), asked.get("topic"), asked.get("partition")))  # type: ignore[arg-type]  # None names no copy
            if asked.get("command") == "records" and copy is not None:
                writer.write((topic, 0), asked["plan"].encode(), to_json(_answer(asked, copy)))
        writer.flush()


def _answer(asked: Mapping[str, Any], copy: ShardCopy) -> dict[str, Any]:
    frames = sorted(f for f in copy.frames.values() if f.hour_ms == asked["hour_ms"])
    return {
        "v": 1,
        "kind": "report",
        **{name: asked[name] for name in ("plan", "step", "node", "topic", "partition")},
        "status": "done",
        "detail": "",
        "rows": [_row(frame) for frame in frames[:_ROWS]],
        "has_more": len(frames) > _ROWS,
        "at_ms": time.time_ns() // 1_000_000,
    }


def _row(frame: Frame) -> list[object]:
    hashed = hash_text(record_hash(frame.key_ms, frame.offset, frame.payload))
    return [frame.key_ms, frame.offset, frame.mark, hashed]
