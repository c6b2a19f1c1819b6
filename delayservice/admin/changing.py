"""What may be changed: a pending record, through the log, so that every copy hears of it in order.

The answer is what the log says was done, not what was asked for.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from connectors.kafka.controls import Place
from delayservice.admin.models import ById, Done, Pause, Reason, Reschedule
from delayservice.admin.panel import Panel
from delayservice.admin.problems import Refusal, described
from delayservice.admin.reading import id_bytes
from delayservice.core import names
from delayservice.core.codec import Header
from delayservice.core.draft import CANCEL_OP, FIRE_OP
from delayservice.core.partitioner import partition_for
from delayservice.core.pauses import Kind, Paused, encode_key, encode_pause
from delayservice.core.pauses import Pause as PauseRow
from delayservice.core.question import Pending

_PausedName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9._*?-]{1,249}$",
        description="A topic; of targets, `*` and `?` stand for any.",
    ),
]
_HEARD_S: Final = 10
_LOOK_S: Final = 0.02
_SAID: Final = {
    "cancelled": "it is cancelled, and will not be delivered",
    "fired": "it goes to its target now, unless that is paused or can't be written to",
    "replaced": "it is replaced by the one that was written now",
    "not_pending": "nothing was pending under this id any more: it was settled before, or never "
    "written",
}


def changing_routes(panel: Panel) -> APIRouter:
    """Cancel, fire and reschedule."""
    routes = APIRouter(prefix="/v1/records", tags=["records"], responses=described(400, 404, 409))

    @routes.post("/cancel")
    def cancel(asked: ById) -> Done:
        """Cancel the pending record of an id, and say what that did."""
        return _control(panel, asked, CANCEL_OP)

    @routes.post("/fire")
    def fire(asked: ById) -> Done:
        """Deliver the pending record of an id now."""
        return _control(panel, asked, FIRE_OP)

    @routes.post("/reschedule")
    def reschedule(asked: Reschedule) -> Done:
        """Give the pending record of an id another due time: a copy of it replaces it."""
        return _reschedule(panel, asked)

    return routes


def pause_routes(panel: Panel) -> APIRouter:
    """Pause and resume deliveries to a target, or a delay topic, on every node."""
    routes = APIRouter(prefix="/v1/pauses", tags=["pauses"], responses=described(404))

    @routes.put("/{kind}/{name}")
    def pause(kind: Kind, name: _PausedName, asked: Reason) -> Pause:
        """Pause. This node has heard of it when it answers, others a moment later."""
        if kind == "topic" and name not in panel.delay_topics:
            raise Refusal(404, f"{name} is no delay topic")
        row = PauseRow(panel.wall_ms(), asked.reason)
        _write_pause(panel, Paused(kind, name), encode_pause(row))
        return Pause(kind=kind, name=name, at_ms=row.at_ms, reason=row.reason)

    @routes.delete("/{kind}/{name}", status_code=204)
    def resume(kind: Kind, name: _PausedName) -> None:
        """Go on. What was put off meanwhile comes within `delivery.held_ms` and half as long."""
        newest = panel.pauses.newest
        if newest is not None and Paused(kind, name) not in newest.all:
            raise Refusal(404, f"{kind} {name} is not paused")
        _write_pause(panel, Paused(kind, name), None)

    return routes


def _write_pause(panel: Panel, paused: Paused, value: bytes | None) -> None:
    """Write it, and wait until this node's workers have heard.

    Raises:
        Refusal: they have not, in time.
    """
    key = encode_key(paused)
    panel.desk.write(panel.settings.topics.pauses, 0, key, value, [])
    is_paused = value is not None
    try:
        for attempt in Retrying(
            retry=retry_if_exception_type(NotHeardError),
            stop=stop_after_delay(_HEARD_S),
            wait=wait_fixed(_LOOK_S),
        ):
            with attempt:
                if any((key in held) is not is_paused for held in panel.inquiry.held()):
                    raise NotHeardError
    except RetryError as exc:
        raise Refusal(
            503,
            f"it is written, and not every worker has heard of it within {_HEARD_S} s; "
            "see /v1/pauses and the node's problems",
        ) from exc


class NotHeardError(Exception):
    """A worker has not heard of a pause yet."""


def _control(panel: Panel, asked: ById, operation: str) -> Done:
    record_id = id_bytes(asked.id, asked.encoding)
    headers: list[Header] = [(names.DELAY_ID, record_id), (names.DELAY_OP, operation.encode())]
    places = _places(panel, asked, record_id)
    with panel.desk.listen() as outcomes:
        written = [panel.desk.write(*place, record_id, None, headers) for place in places]
        told = [outcomes.of(one, asked.wait_ms / 1_000, replaces=False) for one in written]
    return _done(written, told)


def _places(panel: Panel, asked: ById, record_id: bytes) -> list[tuple[str, int]]:
    """Where the id is pending; if nowhere that is known of, where it belongs: the log decides.

    Raises:
        Refusal: there is no such partition.
    """
    found = [(row.topic, row.partition) for row in panel.inquiry.find(record_id)]
    if asked.topic is not None:
        found = [place for place in found if place[0] == asked.topic]
    if asked.partition is not None:
        found = [place for place in found if place[1] == asked.partition]
    if found:
        return found
    topic = asked.topic or next(iter(panel.settings.topics.delay))
    partitions = panel.delay_topics.get(topic, 0)
    if not partitions or topic in panel.settings.levels.by_topic:
        raise Refusal(404, f"{topic} is no delay topic that takes ids")
    place = partition_for(record_id, partitions) if asked.partition is None else asked.partition
    if place >= partitions:
        raise Refusal(404, f"{topic} has {partitions} partitions, none is {place}")
    return [(topic, place)]


def _reschedule(panel: Panel, asked: Reschedule) -> Done:
    if (asked.at_ms is None) == (asked.after_ms is None):
        raise Refusal(400, "give at_ms or after_ms, one of the two")
    record_id = id_bytes(asked.id, asked.encoding)
    rows = [
        row
        for row in panel.inquiry.find(record_id)
        if asked.topic in (None, row.topic) and asked.partition in (None, row.partition)
    ]
    if not rows:
        raise Refusal(404, "nothing is pending under this id on this node; nothing was written")
    if len(rows) > 1:
        shards = ", ".join(f"{row.topic}:{row.partition}" for row in rows)
        raise Refusal(409, f"it is pending in {shards}: name topic and partition")
    row = rows[0]
    if row.recurs:
        raise Refusal(
            409,
            "it is an occurrence of a recurring schedule, which has no single due time: write "
            "the schedule again with another rule",
        )
    with panel.desk.listen() as outcomes:
        headers = _again(row, asked)
        written = panel.desk.write(row.topic, row.partition, row.key, row.value, headers)
        told = outcomes.of(written, asked.wait_ms / 1_000, replaces=True)
    return _done([written], [told])


def _again(row: Pending, asked: Reschedule) -> list[Header]:
    """Headers that ask for the same record at another time."""
    time = (
        (names.DELAY_AT, b"%d" % asked.at_ms)
        if asked.at_ms is not None
        else (names.DELAY_AFTER, b"%d" % (asked.after_ms or 0))
    )
    headers: list[Header] = [
        *row.headers,
        time,
        (names.DELAY_TARGET_TOPIC, row.target.encode()),
        (names.DELAY_ID, row.record_id),
    ]
    if row.target_partition >= 0:
        headers.append((names.DELAY_TARGET_PARTITION, b"%d" % row.target_partition))
    if row.expires_ms is not None:
        headers.append((names.DELAY_EXPIRES_AT, b"%d" % row.expires_ms))
    return headers


def _done(written: list[Place], told: list[str | None]) -> Done:
    """One answer; where several partitions were asked, what was done in one is what counts."""
    known = [outcome for outcome in told if outcome is not None]
    outcome = next((one for one in known if one != "not_pending"), known[0] if known else None)
    places = [f"{topic}:{partition}:{offset}" for topic, partition, offset in written]
    detail = (
        _SAID.get(outcome, outcome)
        if outcome is not None
        else "it is in the log and takes effect in its turn; nothing was heard of it yet: is its "
        "slice owned?"
    )
    return Done(written=places, outcome=outcome, detail=detail)
