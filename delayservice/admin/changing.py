"""HTTP routes that change pending records by writing control records to the delay topic.

They answer with the outcome that the owner of the slice reports in the outcomes topic.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final, TypeAlias

import structlog
from fastapi import APIRouter, Path

from connectors.kafka.dead_letters import replayer_of
from connectors.kafka.outcomes import together
from delayservice.admin.context import ApiContext
from delayservice.admin.guards import BY
from delayservice.admin.models import (
    Bulk,
    BulkDone,
    ById,
    Done,
    Letter,
    NewTime,
    Reason,
    Reschedule,
)
from delayservice.admin.problems import Refusal, described
from delayservice.admin.reading import id_bytes, pending_page
from delayservice.base.errors import DelayServiceError, SettingsError
from delayservice.contract import names, replays
from delayservice.contract.contracts import PAST_DUE_DEAD_LETTER
from delayservice.contract.entry import NewRecord, RecordPlace
from delayservice.contract.input_headers import CANCEL_OP, FIRE_OP, own_headers
from delayservice.contract.names import Header
from delayservice.contract.partitioner import partition_for
from delayservice.contract.replays import NO_SOURCE
from delayservice.engine.pauses import Kind, Paused, encode_key, encode_pause
from delayservice.engine.pauses import Pause as PauseRow
from delayservice.inspection.query import Pending
from delayservice.metrics.status import Pause

_log = structlog.get_logger(__name__)
_RESCHEDULE: Final = "reschedule"
# Each waits in a server thread.
WAITING_MAX: Final = 8
_BUSY_RETRY_S: Final = 1
# Nearer to its due time, the record might be delivered before it is rescheduled.
_SOON_MS: Final = 2_000
_SAID: Final = {
    "cancelled": "the record is cancelled and will not be delivered",
    "fired": "the record is delivered now, unless its target is paused or not writable",
    "replaced": "the record is replaced by the new one",
    "not_pending": "no record is pending under this id: it was settled before, or never written",
}
_IN_THE_LOG: Final = "the control record is written, its outcome is not known yet: "
_NOTHING_REPLACED: Final = (
    "the new record is written, and the replacement is not confirmed yet: if the old one was "
    "delivered meanwhile, both are delivered; otherwise "
)


# Places of written records, and their known outcomes.
_Written: TypeAlias = tuple[list[RecordPlace], dict[RecordPlace, str]]
_PausedName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9._*?-]{1,249}$",
        description="A topic; of targets, `*` and `?` stand for any.",
    ),
]
_SHOWN_MAX: Final = 20
_HEARD_S: Final = 10
_LOOK_S: Final = 0.02


class WaitingRoom:
    """Limit of the requests that wait for an outcome, so that threads are left for others; a
    FastAPI dependency that counts a request while it is answered.
    """

    def __init__(self) -> None:
        self._room = threading.Semaphore(WAITING_MAX)

    def __call__(self) -> Iterator[None]:
        if not self._room.acquire(blocking=False):
            raise Refusal(
                503,
                f"{WAITING_MAX} changes are waiting for their outcomes; nothing was written: try "
                "again, or use a smaller wait_ms",
                retry_after_s=_BUSY_RETRY_S,
            )
        try:
            yield
        finally:
            self._room.release()


@dataclass(frozen=True, slots=True)
class Aim:
    """Partitions to which a control record is written."""

    # Delay topics and partitions to write to.
    places: Sequence[tuple[str, int]]
    # Target topics of the pending records of the id; empty: none was found.
    targets: Collection[str] = ()
    # Slices that were not searched whole, because this node keeps no whole copy of them.
    elsewhere: Sequence[int] = ()


def changing_routes(context: ApiContext) -> APIRouter:
    """Return the routes that change pending records, replay dead letters, and pause and resume
    targets and delay topics on all nodes.
    """
    routes = APIRouter(prefix="/v1", responses=described(403, 404, 409))

    @routes.post("/records/cancel", tags=["records"])
    def cancel(asked: ById) -> Done:
        """Cancel the pending record of an id, and show the outcome."""
        return _control(context, asked, CANCEL_OP)

    @routes.post("/records/fire", tags=["records"])
    def fire(asked: ById) -> Done:
        """Deliver the pending record of an id now."""
        return _control(context, asked, FIRE_OP)

    @routes.post("/records/reschedule", tags=["records"])
    def reschedule(asked: Reschedule) -> Done:
        """Change the due time of the pending record of an id: a copy replaces it."""
        return _reschedule(context, asked)

    @routes.post("/records/bulk", tags=["records"])
    def change_many(asked: Bulk) -> BulkDone:
        """Change the pending records of this node's copies that match, a page at a time."""
        return bulk(context, asked)

    @routes.post("/dead-letters/replay", tags=["dead letters"])
    def replay(asked: Letter) -> Done:
        """Write the record of a dead letter to its delay topic again. It ends a running replay."""
        return _replay(context, asked)

    @routes.put("/pauses/{kind}/{name}", tags=["pauses"])
    def pause(kind: Kind, name: _PausedName, asked: Reason) -> Pause:
        """Pause. It is in effect on this node when the call returns, on others a moment later."""
        if kind == "topic" and name not in context.delay_topics:
            raise Refusal(404, f"{name} is no delay topic")
        row = PauseRow(context.wall_ms(), asked.reason, BY.get())
        _write_pause(context, Paused(kind, name), encode_pause(row))
        return Pause(kind=kind, name=name, at_ms=row.at_ms, reason=row.reason, by=row.by)

    @routes.delete("/pauses/{kind}/{name}", status_code=204, tags=["pauses"])
    def resume(kind: Kind, name: _PausedName) -> None:
        """Resume. Records held meanwhile are delivered within 1.5 times `delivery.held_ms`."""
        newest = context.pauses.newest
        if newest is not None and Paused(kind, name) not in newest.all:
            raise Refusal(404, f"{kind} {name} is not paused")
        _write_pause(context, Paused(kind, name), None)

    return routes


def _control(context: ApiContext, asked: ById, operation: str) -> Done:
    record_id = id_bytes(asked.id, asked.encoding)
    aim = aim_of(context, asked, record_id)
    records = [_control_record(*place, record_id, operation) for place in aim.places]
    return _done(context, aim, _write(context, operation, records, asked.wait_ms), _IN_THE_LOG)


def _control_record(topic: str, partition: int, record_id: bytes, operation: str) -> NewRecord:
    headers: list[Header] = [(names.DELAY_ID, record_id), (names.DELAY_OP, operation.encode())]
    return NewRecord(topic, partition, record_id, None, headers)


def _write(
    context: ApiContext, operation: str, records: Sequence[NewRecord], wait_ms: int
) -> _Written:
    """Write control records, with the name of who asked for them; return their places, and the
    outcomes that are known in time.
    """
    by: Header = (names.DELAY_BY, BY.get().encode())
    signed = [record._replace(headers=[*record.headers, by]) for record in records]
    with context.desk.listen() as outcomes:
        written = [one.place for one in context.desk.write(signed)]
        _note(operation, list(map(str, written)))
        return written, outcomes.of(written, wait_ms / 1_000, replaces=operation == _RESCHEDULE)


def _note(operation: str, what: Sequence[str]) -> None:
    # Places and names of topics: ids and contents may be confidential.
    shown = ", ".join(what[:_SHOWN_MAX])
    _log.info("change_written", by=BY.get(), operation=operation, count=len(what), places=shown)


def aim_of(context: ApiContext, asked: ById, record_id: bytes) -> Aim:
    """Return where to write a control record: the partitions where ``record_id`` is pending; if
    there are none, its home. If the request names a topic or partition, only these are searched,
    and replace the default topic (the first delay topic) and the home. If it names both, the
    control record is written there without a search.

    Raises:
        Refusal: the topic takes no ids or lacks the partition, or the workers do not answer.
        KafkaEdgeError: the cluster does not answer.
    """
    if asked.topic is not None and asked.partition is not None:
        return Aim([_checked(context, asked.topic, asked.partition)])
    try:
        found = _found(context, asked, record_id)
        if found:
            places = [(row.topic, row.partition) for row in found]
            return Aim(places, {row.target for row in found})
        elsewhere = context.slices_elsewhere()
    except DelayServiceError as exc:
        raise Refusal(
            503,
            f"the workers can't be queried for the record, and nothing was written: {exc}. With "
            "topic and partition it is written without asking",
            retry_after_s=_BUSY_RETRY_S,
        ) from exc
    try:
        topic = asked.topic or context.settings.topics.first_delay
    except SettingsError as exc:
        raise Refusal(400, f"{exc}; nothing was written") from exc
    partitions = context.delay_topics.get(topic, 0)
    partition = asked.partition
    if partition is None:
        partition = partition_for(record_id, partitions) if partitions else 0
    return Aim([_checked(context, topic, partition)], elsewhere=elsewhere)


def _found(context: ApiContext, asked: ById, record_id: bytes) -> list[Pending]:
    return [
        row
        for row in context.inquiry.find(record_id)
        if asked.topic in (None, row.topic) and asked.partition in (None, row.partition)
    ]


def _checked(context: ApiContext, topic: str, partition: int) -> tuple[str, int]:
    partitions = context.delay_topics.get(topic, 0)
    if not partitions or topic in context.settings.levels.by_topic:
        raise Refusal(404, f"{topic} is not a delay topic that supports ids")
    if partition >= partitions:
        raise Refusal(404, f"{topic} has {partitions} partitions, none is {partition}")
    return topic, partition


def said(outcome: str, aim: Aim) -> str:
    """Return the sentence that explains the outcome of a control record to a user."""
    if outcome == "not_pending" and aim.elsewhere:
        numbers = ", ".join(map(str, aim.elsewhere))
        return (
            f"nothing was pending under this id in {_shards(aim.places)}; this node keeps no "
            f"whole copy of slices {numbers}: the record may wait there. Ask a node that keeps them"
        )
    return _SAID.get(outcome, outcome)


def _why_unheard(context: ApiContext, aim: Aim) -> str:
    if context.desk.is_stopping:
        return "this node is stopping"
    if context.pauses.newest is None:
        return "the pauses are not known yet"
    paused = [topic for topic, _ in aim.places if context.pauses.holds(topic)]
    if paused:
        return f"delay topic {paused[0]} is paused, and the change takes effect after resume"
    whys = [why for why in map(context.pauses.why, sorted(aim.targets)) if why is not None]
    return whys[0] if whys else "check that its slice has an owner"


def _reschedule(context: ApiContext, asked: Reschedule) -> Done:
    _check_time(asked)
    row = _only_row(context, asked, id_bytes(asked.id, asked.encoding))
    refuse_what_would_fail(context, row, asked)
    written = _write(context, _RESCHEDULE, [_again(row, asked)], asked.wait_ms)
    aim = Aim([(row.topic, row.partition)], {row.target})
    return _done(context, aim, written, _NOTHING_REPLACED)


def _check_time(asked: NewTime) -> None:
    if (asked.at_ms is None) == (asked.after_ms is None):
        raise Refusal(400, "give at_ms or after_ms, one of the two")


def bulk(context: ApiContext, asked: Bulk) -> BulkDone:
    if asked.operation == _RESCHEDULE:
        _check_time(asked)
    page = pending_page(context, asked)
    counts: Counter[str] = Counter()
    records: list[NewRecord] = []
    for row in page.records:
        # Moved by an earlier page, or before a run was resumed: moving it again would never end.
        if asked.operation == _RESCHEDULE and row.due_ms == asked.at_ms:
            counts["unchanged"] += 1
            continue
        try:
            records.append(_changed(context, row, asked))
        except Refusal as exc:
            if exc.status == HTTPStatus.SERVICE_UNAVAILABLE:
                raise  # it passes, so these records are not to be left out
            counts["no_id" if row.id is None else "refused"] += 1
    if asked.dry_run:
        counts["changeable"] = len(records)
    elif records:
        written, told = _write(context, asked.operation, records, asked.wait_ms)
        counts.update(told.values())
        counts["unknown"] = len(written) - len(told)
    return BulkDone(
        matched=len(page.records),
        outcomes=+counts,
        next=page.next,
        damaged=page.damaged,
        slices_elsewhere=page.slices_elsewhere,
    )


def _changed(context: ApiContext, row: Pending, asked: Bulk) -> NewRecord:
    """Return the record that changes a pending one of a list; raises ``Refusal``."""
    if row.id is None:
        raise Refusal(409, "it has no id")
    if asked.operation == "fire" and row.recurs:
        raise Refusal(409, "its next occurrence would match again, and be fired too")
    if asked.operation != _RESCHEDULE:
        return _control_record(row.topic, row.partition, row.id, asked.operation)
    refuse_what_would_fail(context, row, asked)
    if asked.dry_run:
        return _again(row, asked)
    whole = [one for one in context.inquiry.find(row.id) if one.position == row.position]
    if not whole:
        raise Refusal(409, "it is not pending any more")
    return _again(whole[0], asked)


def _only_row(context: ApiContext, asked: Reschedule, record_id: bytes) -> Pending:
    rows = _found(context, asked, record_id)
    if not rows:
        elsewhere = ", ".join(map(str, context.slices_elsewhere()))
        where = f"; it keeps no whole copy of slices {elsewhere}: ask a node that has them"
        raise Refusal(
            404,
            "nothing is pending under this id on this node; nothing was written"
            + (where if elsewhere else ""),
        )
    if len(rows) > 1:
        shards = _shards([(row.topic, row.partition) for row in rows])
        raise Refusal(409, f"the id is pending in {shards}: name topic and partition")
    return rows[0]


def refuse_what_would_fail(context: ApiContext, row: Pending, asked: NewTime) -> None:
    """Raise ``Refusal`` if a pending record can't be replaced by one with the requested due time:
    it recurs, is forwarded to its home, or may be delivered first; this node's copy of the slice is
    catching up; or the new record would be dead-lettered or expire.
    """
    if context.is_catching_up(row.partition):
        raise Refusal(
            503,
            f"the copy of slice {row.partition} here is catching up and may lag the record's "
            "state; nothing was written: ask the node that owns it (/v1/cluster)",
            retry_after_s=_BUSY_RETRY_S,
        )
    now_ms, limits = context.wall_ms(), context.settings.delivery
    due_ms = now_ms + (asked.after_ms or 0) if asked.at_ms is None else asked.at_ms
    is_past, delay_ms = due_ms < now_ms, due_ms - now_ms
    reasons = {
        "it is an occurrence of a recurring schedule, which has no single due time: write the "
        "schedule again with another rule": row.recurs,
        f"it is being forwarded to partition {row.target_partition} of its delay topic, the home "
        "of its id: retry when it is there, or write it again": row.target == row.topic,
        f"it is due at {row.due_ms}, within {_SOON_MS} ms, and may be delivered before it is "
        "replaced": max(row.due_ms, row.next_ms) < now_ms + _SOON_MS,
        f"{due_ms} is {delay_ms} ms from now, and delivery.max_delay_ms is {limits.max_delay_ms}": (
            delay_ms > limits.max_delay_ms
        ),
        f"{due_ms} is past, and delivery.past_due is dead-letter": (
            is_past and limits.past_due == PAST_DUE_DEAD_LETTER
        ),
        f"it expires at {row.expires_ms}, and {due_ms} is not before": (
            row.expires_ms is not None and due_ms >= row.expires_ms
        ),
    }
    for why, is_so in reasons.items():
        if is_so:
            raise Refusal(409, f"{why}; nothing was written")


def _again(row: Pending, asked: NewTime) -> NewRecord:
    time = (
        (names.DELAY_AT, b"%d" % asked.at_ms)
        if asked.at_ms is not None
        else (names.DELAY_AFTER, b"%d" % (asked.after_ms or 0))
    )
    own = own_headers(row.headers)  # without a back-off
    headers: list[Header] = [*own, time, (names.DELAY_TARGET_TOPIC, row.target.encode())]
    for name, number in (
        (names.DELAY_TARGET_PARTITION, row.target_partition),
        (names.DELAY_EXPIRES_AT, row.expires_ms),
    ):
        if number is not None:
            headers.append((name, b"%d" % number))
    headers.append((names.DELAY_ID, row.id))
    return NewRecord(row.topic, row.partition, row.key, row.value, headers)


def _done(context: ApiContext, aim: Aim, changed: _Written, unheard: str) -> Done:
    written, told = changed
    outcome = together(written, told)
    detail = unheard + _why_unheard(context, aim) if outcome is None else said(outcome, aim)
    return Done(written=list(map(str, written)), outcome=outcome, detail=detail)


def _shards(places: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}:{partition}" for topic, partition in places)


def _replay(context: ApiContext, asked: Letter) -> Done:
    settings = context.settings
    letter, is_replayed = context.letter(asked.partition, asked.offset)
    why = replays.refusal(letter, replays.REPLAYS_MAX, context.is_delay, retimed=False)
    if why is not None or letter.source is None:
        raise Refusal(409, f"not replayed: {replays.REASONS[why or NO_SOURCE]}")
    is_level = letter.source.topic in settings.levels.by_topic
    record = replays.rewritten(letter, letter.source, is_level=is_level)
    if not is_replayed:
        with replayer_of(settings) as replayer:
            # Read again: another replay, which is fenced now, may have written it meanwhile.
            _, is_replayed = context.letter(asked.partition, asked.offset)
            refused = {} if is_replayed else replayer.replay([(letter, record)])
    if is_replayed:
        raise Refusal(409, f"not replayed: {replays.REASONS[replays.REPLAYED]}")
    if refused:
        raise Refusal(409, f"not replayed: the broker refuses the record: {refused[letter.place]}")
    place = f"{record.topic}:{record.partition}"
    _note("replay", [f"{settings.topics.dead_letter}:{asked.partition}:{asked.offset}"])
    return Done(written=[], outcome="replayed", detail=f"its record is written to {place} again")


def _write_pause(context: ApiContext, paused: Paused, value: bytes | None) -> None:
    # Returns when this node's workers have read the change; others may be later.
    key = encode_key(paused)
    context.desk.write([NewRecord(context.settings.topics.pauses, 0, key, value, [])])
    is_paused = value is not None
    _note("pause" if is_paused else "resume", [f"{paused.kind} {paused.name}"])

    def is_unheard() -> bool:
        return any((key in held) is not is_paused for held in context.inquiry.held())

    until_s = time.monotonic() + _HEARD_S
    try:
        while is_unheard():
            if context.desk.is_stopping or time.monotonic() > until_s:
                raise Refusal(
                    503,
                    "the pause is written, but not every worker has read it in time "
                    f"({_HEARD_S} s); see /v1/pauses and the node's problems",
                )
            time.sleep(_LOOK_S)
    except DelayServiceError as exc:
        raise Refusal(
            503,
            f"the pause is written, but it is not known whether the workers have read it: {exc}",
        ) from exc
