"""JSON objects of the admin API. All times are epoch milliseconds."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from connectors.kafka.fate import Fate
from delayservice.base.clock import SystemClock
from delayservice.contract.entry import TOPIC_NAME
from delayservice.contract.times import DUE_STOP_MS, SECONDS_LIKE, SURELY_MS, read_instant_ms
from delayservice.inspection.query import Pending, ShownBytes, ShownHeaders
from delayservice.metrics.status import REASON_CHARS_MAX, SliceState
from ha.members import Member


def _no_truth(value: object) -> object:
    if isinstance(value, bool):  # a number in Python, but not in JSON
        raise ValueError("a number is expected")  # noqa: TRY004  # pydantic's way to be told
    return value


_CLOCK: Final = SystemClock()
# Largest instant and delay in a request, ms: the end of the year 9999.
_MS_MAX: Final = 253_402_300_799_999
_ZONELESS: Final = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+")


def _instant_ms(value: object) -> object:
    """Return the epoch milliseconds of a point in time as people write it; without a zone, UTC."""
    if isinstance(value, float) and value.is_integer():  # as JSON may write an integer
        value = int(value)
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        return _no_truth(value)
    text = str(value).strip()
    return read_instant_ms(f"{text}Z" if _ZONELESS.fullmatch(text) else text, _CLOCK.wall_ms())


class Shown(BaseModel):
    """JSON object whose fields are described by the docstrings below them."""

    model_config = ConfigDict(use_attribute_docstrings=True, from_attributes=True)


# Numbers above these, up to ``SURELY_MS``, are refused: they look like seconds.
_EARLY: Final = {"type": "integer", "minimum": 0, "maximum": SECONDS_LIKE[0] - 1}
# Point in time in a request: a number or a text.
Instant = Annotated[
    int,
    BeforeValidator(_instant_ms),
    Field(ge=0, le=DUE_STOP_MS),
    WithJsonSchema({"anyOf": [_EARLY, {"type": "integer", "minimum": SURELY_MS}]}),
]
_NewTime = Annotated[
    Instant,
    Field(le=_MS_MAX),
    WithJsonSchema(
        {"anyOf": [_EARLY, {"type": "integer", "minimum": SURELY_MS, "maximum": _MS_MAX}]}
    ),
]
# Integer in a request; JSON ``true`` and ``false`` are refused.
Whole = Annotated[int, BeforeValidator(_no_truth)]
# With bounds before the validator, which the API's description leaves out otherwise.
_PartitionNo = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_no_truth)]
_DelayMs = Annotated[int, Field(ge=0, le=_MS_MAX), BeforeValidator(_no_truth)]

# Largest number of characters of an id in a request: more than any id has, fit for a URL.
ID_CHARS_MAX: Final = 4_096


class PendingPage(Shown):
    """A page of pending records, by time of next processing."""

    records: list[Pending]
    next: str | None
    """`cursor` of the next page; null: this is the last one. A page may be short or empty although
    more follow.
    """
    scanned: int
    """Number of records read."""
    damaged: int
    """Number of ranges of due times that can't be read now; their records are missing, and are read
    again from Kafka before they are due.
    """
    slices_elsewhere: list[int]
    """Slices without a whole copy on this node: ask another node."""


class Horizon(Shown):
    """Number of records that are due within ``within_ms`` milliseconds from now."""

    within_ms: int
    count: int


class Backlog(Shown):
    """Numbers of pending records, by the time until they are due."""

    now_ms: int
    total: int
    """Pending records of this node's copies."""
    levels: int
    """Records in level topics; part of the total only."""
    overdue: int
    """Due before `now_ms`. Exact up to 2,000 of a shard."""
    within: list[Horizon]
    """Cumulative, without overdue records. Counted by the minute: of more than 200 records of a
    shard in two minutes, those of a minute are spread evenly over it.
    """
    beyond: int
    """Due later than the last interval."""
    slices_elsewhere: list[int]


class LocatedRecord(Shown):
    """A source record and what has become of it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Append time at the broker."""
    key: ShownBytes
    value: ShownBytes
    headers: ShownHeaders
    """As they were written."""
    state: Literal["pending", "late", "unread", "settled", "control", "invalid", "elsewhere"]
    detail: str
    pending: Pending | None
    """The pending record; of a settled one, the requeued record that stands for it."""
    fate: Fate | None
    """Of a settled record; null: not found."""


class DeadLetter(Shown):
    """A record in the dead-letter topic."""

    partition: int
    offset: int
    at_ms: int = Field(validation_alias="time_ms")
    code: str
    detail: str
    source: Annotated[str, BeforeValidator(lambda source: str(source or ""))]
    key: ShownBytes
    value_bytes: int | None
    is_replayed: bool = False


class DeadLetters(Shown):
    """The newest dead letters, newest first."""

    letters: list[DeadLetter]
    total: int
    """Number of offsets in the topic, transaction markers included."""
    looked_at: int
    """Number of offsets read, from the end."""


class Asked(Shown):
    """Body of a request."""

    model_config = ConfigDict(extra="forbid")


class Change(Asked):
    """Request for a change, with the longest wait for its outcome."""

    wait_ms: Whole = Field(default=5000, ge=0, le=30000)
    """How long to wait for the outcome."""


class ById(Change):
    """Request that names a pending record by its id."""

    id: str = Field(min_length=1, max_length=ID_CHARS_MAX)
    """Its `delay-id`."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    topic: str | None = Field(default=None, pattern=f"^{TOPIC_NAME}$")
    """Delay topic if no pending record is found. Default: the first one."""
    partition: _PartitionNo | None = None
    """As `topic`. Default: by the id."""


class NewTime(Change):
    """Due time of a reschedule: either ``at_ms`` or ``after_ms``."""

    at_ms: _NewTime | None = None
    """Epoch milliseconds, RFC 3339, `now+10m`."""
    after_ms: _DelayMs | None = None


class Reschedule(ById, NewTime):
    """Request for another due time."""


class Matching(Asked):
    """Pending records that are asked for, a page of them."""

    id: str | None = Field(default=None, max_length=ID_CHARS_MAX)
    """Pattern of ids: `*` and `?` stand for any."""
    target: str | None = Field(default=None, max_length=249)
    """Pattern of target topics."""
    topic: str | None = Field(default=None, pattern=f"^{TOPIC_NAME}$")
    """Delay topic."""
    recurring: bool = False
    """Only recurring schedules."""
    from_: Instant = Field(default=0, alias="from")
    """First due time: epoch ms, RFC 3339, `now`, `+10m` or `-2h`."""
    to: Instant = DUE_STOP_MS
    """End of due times, as `from`. Default: none."""
    slices: Annotated[list[_PartitionNo], Field(max_length=100_000)] | None = None
    """Only records of these slices, for example `slices_elsewhere` of another node's answer."""
    beyond_window: bool | None = None
    """Include records due beyond the roll window, which takes longer. Default: only if the whole
    range is beyond it.
    """
    limit: Whole = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=1_000)
    """`next` of a page."""


class Bulk(Matching, NewTime):
    """Request to change the pending records that match, a page of them."""

    operation: Literal["cancel", "fire", "reschedule"]
    dry_run: bool = False
    """Only count them."""
    limit: Whole = Field(default=100, ge=1, le=10_000)


class BulkDone(Shown):
    """Answer to a bulk change."""

    matched: int
    outcomes: dict[str, int]
    """Numbers of records by outcome; also `no_id` and `refused`, which can't be changed;
    `unchanged`, which have the new time; `unknown`: written, not known yet; and `changeable` in a
    dry run.
    """
    next: str | None
    """`cursor` of the next request; null: this was the last one. It may be repeated from the start,
    as what is changed is not pending any more.
    """
    damaged: int
    """Number of ranges of due times that can't be read now."""
    slices_elsewhere: list[int]
    """Slices without a whole copy on this node: ask another node for these `slices`."""


class Letter(Asked):
    """Request to replay a dead letter."""

    partition: _PartitionNo
    offset: Whole = Field(ge=0, le=2**63 - 1)
    """Place in the dead-letter topic."""


class Reason(Asked):
    """Request to pause, with the reason to show."""

    reason: str = Field(default="", max_length=REASON_CHARS_MAX)


class Done(Shown):
    """Answer to a change: the written control records, and the outcome."""

    written: list[str]
    """`topic:partition:offset` of the control record."""
    outcome: str | None
    """`cancelled`, `fired`, `replaced`, `not_pending` or `replayed`; null: not known yet."""
    detail: str


class Copy(Shown):
    """A replica of a slice."""

    node: str
    stored: int
    """Stored source offsets, summed over the delay topics."""
    behind: int
    """Offsets behind the most advanced copy."""
    caught_up: bool
    """Whether it may take over."""


class Slice(Shown):
    """One slice: partition n of every delay topic."""

    slice: int
    shards: list[str]
    """Its shards, `topic:partition`."""
    owner: str
    """Node that owns it; empty: no node does."""
    epoch: int
    heir: str
    """Node to which it is being handed over; empty: none."""
    copies: list[Copy]
    here: SliceState | None
    """null: this node keeps no copy."""


class DelayTopic(Shown):
    """A delay topic."""

    name: str
    partitions: int
    level_ms: int | None
    """Its fixed delay; null: any delay."""
    is_paused: bool


class Cluster(Shown):
    """Nodes, slices and delay topics."""

    node_id: str
    """Node that answers."""
    standalone: bool
    """Without ZooKeeper: this node owns all slices."""
    nodes: list[Member]
    slices: list[Slice]
    ownerless: list[int]
    """Slices that no node owns now."""
    topics: list[DelayTopic]
