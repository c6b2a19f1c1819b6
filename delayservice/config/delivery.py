"""Settings of delivery, and the rules of single targets."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    ByteSize,
    Field,
    model_validator,
)

from delayservice.config.units import (
    DAY_MS,
    MIB,
    MINUTE_MS,
    YEAR_MS,
    Bytes,
    DurationMs,
    HeaderBytes,
    ListText,
    Section,
    Topic,
    TopicPattern,
)


class TargetRules(Section):
    """Where records of one delay topic may go. Nothing is allowed unless it is listed."""

    allow: Annotated[tuple[TopicPattern, ...], ListText] = Field(
        default=(), max_length=1000, description="Patterns of allowed target topics (`*` and `?`)."
    )
    default_target: Topic | None = Field(
        default=None, description="Target of records without `delay-target-topic`. Default: none."
    )


class Delivery(Section):
    """What a due record meets."""

    mode: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once",
        description="At least once is faster and may double a record in a crash.",
    )
    partitioner: Literal[
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
        "random",
    ] = Field(default="murmur2_random", description="As Java producers do, unless set otherwise.")
    transaction_interval_ms_min: DurationMs = Field(
        default=10,
        ge=0,
        le=MINUTE_MS,
        description="Shortest time between two transactions of a worker: under exactly_once it "
        "bounds the median lateness from below. A transaction takes 2 to 4 ms of a broker's core.",
    )
    transaction_interval_ms_max: DurationMs = Field(
        default=100,
        ge=1,
        le=MINUTE_MS,
        description="Longest time; it is adapted to load in between. Under at_least_once, where a "
        "transaction carries cursors only, always this.",
    )
    transactions_per_s_max: int = Field(
        default=200,
        ge=1,
        le=100_000,
        description="Transactions of the whole node per second; its workers share them.",
    )
    batch_records_max: int = Field(
        default=20_000,
        ge=1,
        le=1_000_000,
        description="Records of one transaction; the shards that have some due share it.",
    )
    batch_bytes_max: Bytes = Field(
        default=ByteSize(32 * MIB), description="Bytes of one transaction, about."
    )
    max_delay_ms: DurationMs = Field(
        default=10 * YEAR_MS,
        ge=1_000,
        le=100 * YEAR_MS,
        description="The longest delay that is accepted.",
    )
    clamp: bool = Field(
        default=False, description="Shorten a longer delay to `max_delay_ms` instead of refusing."
    )
    past_due: Literal["deliver", "dead-letter"] = Field(
        default="deliver", description="A record that was due before it was written."
    )
    header_bytes_max: HeaderBytes = Field(
        default=ByteSize(4_096), description="Longest value of one header of the contract."
    )
    id_bytes_max: HeaderBytes = Field(default=ByteSize(512), description="Longest `delay-id`.")
    id_partitions: int = Field(
        default=0,
        ge=0,
        description="Records with a `delay-id` are sent to partition murmur2(id) modulo this of "
        "their delay topic, so that a cancel by any client finds its record; 0: they stay where "
        "they lie. Set it to the partitions of the delay topics; it can't be changed afterwards.",
    )
    roll_window_ms: DurationMs = Field(
        default=0,
        ge=0,
        le=366 * DAY_MS,
        description="A record due later than this is rolled forward in its delay topic. "
        "0: as wide as the wheel.",
    )
    park_delays_ms: Annotated[
        tuple[Annotated[DurationMs, Field(ge=1, le=YEAR_MS)], ...], ListText
    ] = Field(
        default=(1_000, 5_000, 30_000, 2 * MINUTE_MS, 10 * MINUTE_MS),
        min_length=1,
        max_length=100,
        description="Waits between attempts at a target that fails; after the last: dead letter.",
    )
    missing_target: Literal["park", "dead-letter"] = Field(
        default="park",
        description="A record whose target does not exist: tried again after `park_delays_ms`, or "
        "a dead letter at once.",
    )
    held_ms: DurationMs = Field(
        default=MINUTE_MS,
        ge=1_000,
        le=60 * MINUTE_MS,
        description="A record whose target is paused is put off for so long, and looked at again; "
        "as the pause lasts, for up to ten times as long.",
    )
    slot_records_max: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Records of a shard due in one second that are delivered in it; 0: any number.",
    )
    slot_policy: Literal["accept", "spread", "dead-letter"] = Field(
        default="accept",
        description="What becomes of more: counted, moved to later seconds, or dead letters.",
    )
    clock_tolerance_ms: DurationMs = Field(
        default=500, ge=10, le=MINUTE_MS, description="A clock that is off by more stops delivery."
    )

    @model_validator(mode="after")
    def _interval_in_order(self) -> Self:
        if self.transaction_interval_ms_min > self.transaction_interval_ms_max:
            raise ValueError("transaction_interval_ms_min is above transaction_interval_ms_max")
        if self.id_bytes_max > self.header_bytes_max:
            raise ValueError("id_bytes_max is above header_bytes_max")
        return self
