"""JSON objects of the admin API. All times are epoch milliseconds."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from connectors.kafka.fate import Fate
from delayservice.contract.codes import RecordRefusedError
from delayservice.contract.times import check_is_ms
from delayservice.inspection.query import Pending, ShownBytes, ShownHeaders
from delayservice.metrics.status import REASON_CHARS_MAX, SliceState


def _no_truth(value: object) -> object:
    if isinstance(value, bool):  # a number in Python, but not in JSON
        raise ValueError("a number is expected")  # noqa: TRY004  # pydantic's way to be told
    return value


def _no_seconds(at_ms: int) -> int:
    try:
        return check_is_ms("at_ms", at_ms)
    except RecordRefusedError as exc:
        raise ValueError(exc.detail) from exc


class Shown(BaseModel):
    """JSON object whose fields are described by the docstrings below them."""

    model_config = ConfigDict(use_attribute_docstrings=True, from_attributes=True)


# Integer in a request; JSON ``true`` and ``false`` are refused.
Whole = Annotated[int, BeforeValidator(_no_truth)]

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
    """Slices without a copy on this node: ask another node."""


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


class Bucket(Shown):
    """Number of records due in an interval that starts at ``start_ms``, epoch ms."""

    start_ms: int
    count: int


class Timeline(Shown):
    """Numbers of pending records in consecutive intervals of ``unit_ms`` milliseconds."""

    unit_ms: int
    coarse_from_ms: int | None
    """From this time on, counts of longer intervals are spread evenly; null: all are exact."""
    buckets: list[Bucket]
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
    at_ms: int
    code: str
    detail: str
    source: str
    key: ShownBytes
    value_bytes: int | None
    is_replayed: bool


class DeadLetters(Shown):
    """The newest dead letters, newest first."""

    letters: list[DeadLetter]
    total: int
    """Number of offsets in the topic, transaction markers included."""
    looked_at: int
    """Number of offsets read, from the end."""


class ById(Shown):
    """Request that names a pending record by its id."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=ID_CHARS_MAX)
    """Its `delay-id`."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    topic: str | None = Field(default=None, pattern="^[A-Za-z0-9._-]{1,249}$")
    """Delay topic if no pending record is found. Default: the first one."""
    partition: Whole | None = Field(default=None, ge=0, le=2**31 - 1)
    """As `topic`. Default: by the id."""
    wait_ms: Whole = Field(default=5000, ge=0, le=30000)
    """How long to wait for the outcome."""


class Reschedule(ById):
    """Request for another due time: either ``at_ms`` or ``after_ms``."""

    at_ms: Annotated[Whole, AfterValidator(_no_seconds)] | None = Field(
        default=None, ge=0, le=253402300799999
    )
    """Epoch milliseconds."""
    after_ms: Whole | None = Field(default=None, ge=0, le=253_402_300_799_999)


class Reason(Shown):
    """Request to pause, with the reason to show."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=REASON_CHARS_MAX)


class Done(Shown):
    """Answer to a change: the written control records, and the outcome."""

    written: list[str]
    """`topic:partition:offset` of the control record."""
    outcome: str | None
    """`cancelled`, `fired`, `replaced` or `not_pending`; null: not known yet."""
    detail: str


class Node(Shown):
    """A node of the cluster. ``address`` is its host name."""

    node_id: str
    broker_id: int | None
    rack: str
    address: str
    workers: int
    alive: list[int]
    """Numbers of its live workers."""


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
    nodes: list[Node]
    slices: list[Slice]
    ownerless: list[int]
    """Slices that no node owns now."""
    topics: list[DelayTopic]
