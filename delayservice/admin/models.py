"""JSON objects of the admin API. All times are epoch milliseconds."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from delayservice.admin.fate import Fate
from delayservice.contract.codes import RecordRefusedError
from delayservice.contract.times import check_is_ms
from delayservice.inspection.query import Pending, ShownBytes, ShownHeaders


def _no_truth(value: object) -> object:
    if isinstance(value, bool):  # a number in Python, but not in JSON
        raise ValueError("a number is expected")  # noqa: TRY004  # pydantic's way to be told
    return value


def _no_seconds(at_ms: int) -> int:
    try:
        return check_is_ms("at_ms", at_ms)
    except RecordRefusedError as exc:
        raise ValueError(exc.detail) from exc


# Integer in a request; JSON ``true`` and ``false`` are refused.
Whole = Annotated[int, BeforeValidator(_no_truth)]

# Largest number of characters of an id in a request: more than any id has, fit for a URL.
ID_CHARS_MAX: Final = 4_096


class PendingPage(BaseModel):
    """A page of pending records, by time of next processing."""

    records: list[Pending]
    next: str | None = Field(
        description="`cursor` of the next page; null: this is the last one. A page may be short "
        "or empty although more follow."
    )
    scanned: int = Field(description="Number of records read.")
    damaged: int = Field(
        description="Number of ranges of due times that can't be read now; their records are "
        "missing, and are read again from Kafka before they are due."
    )
    slices_elsewhere: list[int] = Field(
        description="Slices without a copy on this node: ask another node."
    )


class Horizon(BaseModel):
    """Number of records that are due within ``within_ms`` milliseconds from now."""

    within_ms: int
    count: int


class Backlog(BaseModel):
    """Numbers of pending records, by the time until they are due."""

    now_ms: int
    total: int = Field(description="Pending records of this node's copies.")
    levels: int = Field(description="Records in level topics; part of the total only.")
    overdue: int = Field(description="Due before `now_ms`. Exact up to 2,000 of a shard.")
    within: list[Horizon] = Field(
        description="Cumulative, without overdue records. Counted by the minute: of more than 200 "
        "records of a shard in two minutes, those of a minute are spread evenly over it."
    )
    beyond: int = Field(description="Due later than the last interval.")
    slices_elsewhere: list[int]


class Bucket(BaseModel):
    """Number of records due in an interval that starts at ``start_ms``, epoch ms."""

    start_ms: int
    count: int


class Timeline(BaseModel):
    """Numbers of pending records in consecutive intervals of ``unit_ms`` milliseconds."""

    now_ms: int
    unit_ms: int
    coarse_from_ms: int | None = Field(
        description="From this time on, counts of longer intervals are spread evenly; null: all "
        "buckets are exact."
    )
    buckets: list[Bucket]
    slices_elsewhere: list[int]


class LocatedRecord(BaseModel):
    """A source record and what has become of it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = Field(description="Append time at the broker.")
    key: ShownBytes
    value: ShownBytes
    headers: ShownHeaders = Field(description="As they were written.")
    state: Literal["pending", "late", "unread", "settled", "control", "invalid", "elsewhere"]
    detail: str
    pending: Pending | None = Field(
        description="The pending record; of a settled one, the requeued record that stands for it."
    )
    fate: Fate | None = Field(description="Of a settled record; null: not found.")


class DeadLetter(BaseModel):
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


class DeadLetters(BaseModel):
    """The newest dead letters, newest first."""

    letters: list[DeadLetter]
    total: int = Field(description="Number of offsets in the topic, transaction markers included.")
    looked_at: int = Field(description="Number of offsets read, from the end.")


class ById(BaseModel):
    """Request that names a pending record by its id."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=ID_CHARS_MAX, description="Its `delay-id`.")
    encoding: Literal["utf-8", "base64"] = "utf-8"
    topic: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="Delay topic if no pending record is found. Default: the first one.",
    )
    partition: Whole | None = Field(
        default=None, ge=0, le=2**31 - 1, description="As `topic`. Default: by the id."
    )
    wait_ms: Whole = Field(
        default=5_000, ge=0, le=30_000, description="How long to wait for the outcome."
    )


class Reschedule(ById):
    """Request for another due time: either ``at_ms`` or ``after_ms``."""

    at_ms: Annotated[Whole, AfterValidator(_no_seconds)] | None = Field(
        default=None, ge=0, le=253_402_300_799_999, description="Epoch milliseconds."
    )
    after_ms: Whole | None = Field(default=None, ge=0, le=253_402_300_799_999)


class Reason(BaseModel):
    """Request to pause, with the reason to show."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=1_000)


class Done(BaseModel):
    """Answer to a change: the written control records, and the outcome."""

    written: list[str] = Field(description="`topic:partition:offset` of the control record.")
    outcome: str | None = Field(
        description="`cancelled`, `fired`, `replaced` or `not_pending`; null: not known yet."
    )
    detail: str


class Node(BaseModel):
    """A node of the cluster. ``address`` is its host name."""

    model_config = ConfigDict(from_attributes=True)

    node_id: str
    broker_id: int | None
    rack: str
    address: str
    workers: int
    alive: list[int] = Field(description="Numbers of its live workers.")


class Copy(BaseModel):
    """A replica of a slice."""

    node: str
    stored: int = Field(description="Stored source offsets, summed over the delay topics.")
    behind: int = Field(description="Offsets behind the most advanced copy.")
    caught_up: bool = Field(description="Whether it may take over.")


class Here(BaseModel):
    """A slice as this node sees it."""

    model_config = ConfigDict(from_attributes=True)

    state: str
    worker: int
    lag_s: float = Field(description="Lag of its copy behind the owner, seconds; -1: unknown.")
    source_lag: int
    pending: int
    oldest_due_ms: int | None
    alarm: str


class Slice(BaseModel):
    """One slice: partition n of every delay topic."""

    slice: int
    shards: list[str] = Field(description="Its shards, `topic:partition`.")
    owner: str = Field(description="Node that owns it; empty: no node does.")
    epoch: int
    heir: str = Field(description="Node to which it is being handed over; empty: none.")
    copies: list[Copy]
    here: Here | None = Field(description="null: this node keeps no copy.")


class DelayTopic(BaseModel):
    """A delay topic."""

    name: str
    partitions: int
    level_ms: int | None = Field(description="Its fixed delay; null: any delay.")
    is_paused: bool


class Cluster(BaseModel):
    """Nodes, slices and delay topics."""

    node_id: str = Field(description="Node that answers.")
    standalone: bool = Field(description="Without ZooKeeper: this node owns all slices.")
    nodes: list[Node]
    slices: list[Slice]
    ownerless: list[int] = Field(description="Slices that no node owns now.")
    topics: list[DelayTopic]


class Health(BaseModel):
    """Health of the node."""

    status: Literal["ok"]
