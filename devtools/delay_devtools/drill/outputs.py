from __future__ import annotations

from dataclasses import dataclass

from delay_devtools.drill.service import ModelShard, ModelStep
from delay_devtools.drill.users import TopicNames
from delay_devtools.drill.wire import BY_KEY, Headers, Place, partition_of


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """Record to write. ``own``: headers of the producer, or all of a requeued record; ``told``:
    headers that the service adds.
    """

    place: Place
    key: bytes | None
    value: bytes | None
    own: Headers
    told: Headers
    at_ms: int

    @property
    def headers(self) -> Headers:
        return [*self.own, *self.told]


def output_of(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    if step.act in ("deliver", "fire"):
        return _delivery(names, shard, step)
    if step.act == "copy":
        return _copy(names, shard, step)
    if step.act == "letter":
        return _letter(names, shard, step)
    return _outcome(names, shard, step)


def _delivery(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    asked, told = step.record.request, shard.told(step.record)
    if step.act == "fire":
        told.append(("delay-fired-by", b"%d" % step.by))
    place = (asked.target, _partition(names, step))
    return OutputRecord(place, asked.out_key, asked.value, asked.own, told, step.at_ms)


def _partition(names: TopicNames, step: ModelStep) -> int:
    asked, count = step.record.request, names.partitions
    if asked.to != BY_KEY:
        return asked.to
    key = asked.out_key
    return step.record.offset % count if key is None else partition_of(key, count)


def _copy(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    if step.again is None:
        raise AssertionError("a copy of nothing")
    asked = step.again.request
    headers = shard.copy_headers(step.record, step.again, names.secret)
    return OutputRecord(shard.place, asked.out_key, asked.value, headers, [], step.at_ms)


def _letter(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    asked, told = step.record.request, shard.told(step.record)
    key, headers = asked.key, asked.headers
    if asked.op:
        key, headers = asked.out_key, [*asked.own, ("delay-at", b"%d" % asked.due_ms)]
        headers.append(("delay-target-topic", asked.target.encode()))
        if asked.record_id is not None:
            headers.append(("delay-id", asked.record_id))
        if asked.expires_ms is not None:
            headers.append(("delay-expires-at", b"%d" % asked.expires_ms))
    why: Headers = [("delay-error", step.text.encode()), ("delay-error-detail", b"drilled")]
    place = (names.own("dead_letter"), 0)
    return OutputRecord(place, key, asked.value, headers, [*why, *told[1:3]], step.at_ms)


def _outcome(names: TopicNames, shard: ModelShard, step: ModelStep) -> OutputRecord:
    name = {"control": step.text, "expire": "expired"}.get(step.act, step.act)
    told = shard.told(step.record)
    headers: Headers = [("delay-outcome", name.encode()), ("delay-shard", shard.name.encode())]
    headers.append(told[2])
    headers += [header for header in told if header[0] == "delay-id"]
    if step.act in ("control", "expire"):
        headers.append(told[1])
    if step.by >= 0:
        headers.append(("delay-settled-by", b"%d" % step.by))
    place = (names.own("outcomes"), 0)
    return OutputRecord(place, step.record.request.record_id, None, [], headers, step.at_ms)
