"""HTTP routes that read: cluster, pending records, dead letters, pauses, configuration."""

from __future__ import annotations

import base64
import binascii
import re
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Path, Query

from connectors.kafka.fate import ID_OFFSETS_MAX
from delayservice.admin import models
from delayservice.admin.cluster import add_cluster_routes
from delayservice.admin.context import ApiContext
from delayservice.admin.models import ID_CHARS_MAX
from delayservice.admin.problems import Refusal, described
from delayservice.config.reference import redacted
from delayservice.contract.entry import OFFSET_MAX, TOPIC_NAME, PolledRecord
from delayservice.contract.times import DUE_STOP_MS
from delayservice.inspection.query import (
    HORIZONS_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    Locate,
    Pending,
    Position,
    Search,
    counts_before,
    total_of,
)
from delayservice.metrics.status import Pause, shown_pauses

UNITS_MS: Final = {"second": SECOND_MS, "minute": MINUTE_MS, "hour": HOUR_MS}
# Records that each shard reads for one page of results; it takes about 10 ms.
SCAN_MAX: Final = 20_000

_CONTENT: Final = {"records": {"__all__": {"value", "headers"}}}
_NO_RECORD: Final = (
    "no record is pending under this id on this node, and none of the newest "
    f"{ID_OFFSETS_MAX:,} offsets of each delay topic's partition has it"
)
_REQUEUED_ROWS: Final = 1_000
TopicName = Annotated[str, Path(pattern=f"^{TOPIC_NAME}$")]
Partition = Annotated[int, Path(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Path(ge=0, le=2**63 - 1)]
# The ``Position`` at which a page of results ended: key time, topic, partition, offset.
_CURSOR: Final = re.compile(rf"(\d{{1,16}}):({TOPIC_NAME}):(\d{{1,9}}):(-1|\d{{1,19}})", re.ASCII)


def reading_routes(context: ApiContext) -> APIRouter:
    """Return the routes that read. Their paths begin with ``/v1``."""
    routes = APIRouter(prefix="/v1", responses=described())
    add_cluster_routes(routes, context)
    _add_search(routes, context)
    _add_records(routes, context)
    _add_rest(routes, context)
    return routes


def _add_search(routes: APIRouter, context: ApiContext) -> None:
    @routes.get("/pending/horizon", tags=["pending"])
    def horizon() -> models.Backlog:
        """Return the number of pending records by time until due."""
        return backlog_of(context)

    @routes.get("/pending", tags=["pending"], response_model_exclude=_CONTENT)
    def pending(asked: Annotated[models.Matching, Query()]) -> models.PendingPage:
        """Pending records of this node's copies, a page at a time, in the order in which they are
        next processed: by due time, parked ones by their next try, and what is due beyond the roll
        window by its roll time.
        """
        return pending_page(context, asked)


def pending_page(context: ApiContext, asked: models.Matching) -> models.PendingPage:
    is_beyond = asked.from_ > context.wall_ms() + context.settings.roll_window_ms
    search = Search(
        from_ms=asked.from_,
        to_ms=asked.to,
        id=asked.id,
        target=asked.target,
        topic=asked.topic,
        recurring=asked.recurring,
        slices=None if asked.slices is None else frozenset(asked.slices),
        limit=asked.limit,
        scan_max=SCAN_MAX,
        after=None if asked.cursor is None else position_of(asked.cursor),
        beyond_window=is_beyond if asked.beyond_window is None else asked.beyond_window,
    )
    page = context.inquiry.search(search)
    elsewhere = context.slices_elsewhere()
    return models.PendingPage(
        records=page.rows,
        next=None if page.upto is None else ":".join(map(str, page.upto)),
        scanned=page.scanned,
        damaged=page.damaged,
        slices_elsewhere=[n for n in elsewhere if search.slices is None or n in search.slices],
    )


def backlog_of(context: ApiContext) -> models.Backlog:
    """Return the numbers of pending records of this node's copies: all, overdue, due within certain
    times from now, and due later.
    """
    horizon = context.inquiry.horizon()
    now_ms = horizon.now_ms
    stops_ms = [now_ms, *(now_ms + ms for ms in HORIZONS_MS)]
    overdue, *counts = counts_before(horizon.ranges, stops_ms)
    return models.Backlog(
        now_ms=now_ms,
        total=horizon.total,
        levels=horizon.levels,
        overdue=overdue,
        within=[
            models.Horizon(within_ms=ms, count=count - overdue)
            for ms, count in zip(HORIZONS_MS, counts, strict=True)
        ],
        beyond=total_of(horizon.ranges) - counts[-1],
        slices_elsewhere=context.slices_elsewhere(),
    )


class Timeline(NamedTuple):
    """Numbers of pending records in consecutive intervals of ``unit_ms`` milliseconds."""

    unit_ms: int
    # From this time on, counts of longer intervals are spread evenly; None: all are exact.
    coarse_from_ms: int | None
    # Start of each interval, epoch ms, and the number of records due in it.
    buckets: list[tuple[int, int]]
    slices_elsewhere: list[int]


def timeline_of(context: ApiContext, unit: str, buckets: int) -> Timeline:
    """Return the number of pending records due in each of ``buckets`` intervals, each one ``unit``
    long; the first contains the current time.
    """
    now_ms, unit_ms = context.wall_ms(), UNITS_MS[unit]
    first_ms = now_ms // unit_ms * unit_ms
    ranges = context.inquiry.horizon().ranges
    starts = [first_ms + number * unit_ms for number in range(buckets + 1)]
    before, stop_ms = counts_before(ranges, starts), starts[-1]
    coarse = [
        max(start, first_ms)
        for start, stop, _ in ranges
        if stop - start > unit_ms and start < stop_ms and stop > first_ms
    ]
    counts = [after - count for count, after in pairwise(before)]
    found = list(zip(starts, counts, strict=False))
    return Timeline(unit_ms, min(coarse, default=None), found, context.slices_elsewhere())


def position_of(cursor: str) -> Position:
    """Return the position that a cursor names, at which the previous page of results ended; raises
    ``Refusal`` if it is none.
    """
    found = _CURSOR.fullmatch(cursor)
    position = found and (int(found[1]), found[2], int(found[3]), int(found[4]))
    if not position or position[0] > DUE_STOP_MS or position[3] > OFFSET_MAX:
        raise Refusal(400, "cursor is not the `next` of a page")
    return position


def _add_records(routes: APIRouter, context: ApiContext) -> None:
    @routes.get("/records", tags=["records"], responses=described(404))
    def by_id(
        record_id: Annotated[
            str,
            Query(alias="id", min_length=1, max_length=ID_CHARS_MAX, description="Its `delay-id`."),
        ],
        encoding: Annotated[str, Query(pattern="^(utf-8|base64)$")] = "utf-8",
    ) -> list[Pending] | list[models.LocatedRecord]:
        """The pending record of an id, one in each delay topic and partition at most; if there is
        none, the newest record with this id and what became of it.
        """
        return of_id(context, id_bytes(record_id, encoding))

    @routes.get("/records/{topic}/{partition}/{offset}", tags=["records"], responses=described(404))
    def by_source(topic: TopicName, partition: Partition, offset: Offset) -> models.LocatedRecord:
        """A record of a delay topic as it was written, and what became of it."""
        return located(context, topic, partition, context.read(topic, partition, offset))


def of_id(context: ApiContext, record_id: bytes) -> list[Pending] | list[models.LocatedRecord]:
    """Return the pending records with this ``delay-id``; if there are none, the newest record with
    it among the last offsets of the delay topics.
    """
    rows = context.inquiry.find(record_id)
    if rows:
        return rows
    levels = context.settings.levels.by_topic
    topics = {name: count for name, count in context.delay_topics.items() if name not in levels}
    found = context.fates.newest_of_id(record_id, topics)
    if found is None:
        raise Refusal(404, _NO_RECORD)
    return [located(context, *found)]


def located(
    context: ApiContext, topic: str, partition: int, row: PolledRecord
) -> models.LocatedRecord:
    """Return a record of a delay topic, its state, and what became of it if it is settled."""
    status = context.inquiry.locate(Locate(topic=topic, partition=partition, row=row))
    detail, record, fate = status.detail, status.record, None
    if status.state == "settled":
        record = _requeued(context, status.record)
        if record is not None:
            place = f"{record.topic}:{record.partition}:{record.offset}"
            detail = f"it was written again as {place}, which is pending"
        else:
            fate, problems = context.fates.fate_of(topic, partition, row, status.record)
            detail = "; ".join([detail if fate is None else str(fate), *sorted(problems)])
    return models.LocatedRecord(
        topic=topic,
        partition=partition,
        offset=row[0],
        timestamp_ms=row[1],
        key=row[2],
        value=row[3],
        headers=row[4] or [],
        state=status.state,
        detail=detail,
        pending=record,
        fate=fate,
    )


def _requeued(context: ApiContext, record: Pending | None) -> Pending | None:
    """Return the pending record that was written for a settled one, because it was rolled, parked
    or sent to its home, or recurs; None: there is none.
    """
    if record is None:
        return None
    if record.id is not None:
        rows = context.inquiry.find(record.id)
    else:
        is_due = record.due_ms <= context.wall_ms()
        asked = Search(
            from_ms=record.due_ms,
            to_ms=DUE_STOP_MS if is_due else record.due_ms + 1,
            target=record.target if is_due else None,
            limit=_REQUEUED_ROWS,
            scan_max=SCAN_MAX,
            beyond_window=not is_due,
        )
        rows = context.inquiry.search(asked).rows
    source = record.source.partition("#")[0]  # without the number of an occurrence
    return next((row for row in rows if row.source.partition("#")[0] == source), None)


def id_bytes(text: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise Refusal(400, f"id is no base64: {exc}") from exc


def _add_rest(routes: APIRouter, context: ApiContext) -> None:
    @routes.get("/dead-letters", tags=["dead letters"])
    def dead_letters(
        code: Annotated[
            str | None, Query(max_length=100, description="Filter by error code.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
        last: Annotated[
            int, Query(ge=1, le=20_000, description="Number of offsets to read, from the end.")
        ] = 2_000,
    ) -> models.DeadLetters:
        """The newest dead letters. `delayservice dlq` sees all of them and replays them."""
        found = context.dead_letters(last, code)
        letters = [models.DeadLetter.model_validate(one) for one in found.letters[:limit]]
        for letter in letters:
            letter.is_replayed = (letter.partition, letter.offset) in found.replayed
        return models.DeadLetters(
            letters=letters,
            total=found.held,
            looked_at=found.looked_at,
        )

    @routes.get("/pauses", tags=["pauses"])
    def pauses() -> list[Pause]:
        """Return the pauses."""
        return pauses_of(context)

    @routes.get("/config", tags=["configuration"])
    def config() -> dict[str, Any]:
        """The configuration in effect, secrets hidden."""
        return redacted(context.settings)


def pauses_of(context: ApiContext) -> list[Pause]:
    """Return the active pauses that this node has read; raises ``Refusal`` before the first
    reading.
    """
    newest = context.pauses.newest
    if newest is None:
        raise Refusal(503, "the pauses topic has not been read yet; try again in a moment")
    return shown_pauses(newest)
