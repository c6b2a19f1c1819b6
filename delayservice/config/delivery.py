"""Settings of delivery: rules, level topics, rates, and allowed target topics."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, ByteSize, Field, model_validator

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
    names_of,
)
from delayservice.contract.levels import PRESETS, level_topic
from delayservice.contract.names import is_reserved

# Longest interval of transactions, ms. One is open that long and then committed, all of it within
# its timeout of 45 s: else it would be aborted, and its records delivered again and again.
INTERVAL_MS_MAX: Final = 20_000


def _read_target(name: str) -> str:
    if is_reserved(name):
        raise ValueError("topics of Kafka (__*) and of a delay service (delay_*) are no targets")
    return name


class TargetRules(Section):
    """Targets of one delay topic; a target that is not listed is refused."""

    allow: Annotated[tuple[TopicPattern, ...], ListText] = Field(default=(), max_length=1000)
    """Patterns of allowed target topics (`*` and `?`)."""
    default_target: Annotated[Topic, AfterValidator(_read_target)] | None = None
    """Target of records without `delay-target-topic`, always allowed. Unset: they become dead
    letters.
    """


class Delivery(Section):
    """Rules and limits for delayed records and their delivery."""

    mode: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """`at_least_once`: faster, but a crash may deliver records twice."""
    partitioner: Literal[
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
        "random",
    ] = "murmur2_random"
    """librdkafka partitioner that chooses the target partition. The default agrees with Java
    producers.
    """
    transaction_interval_ms_min: DurationMs = Field(default=10, ge=0, le=INTERVAL_MS_MAX)
    """Shortest time between two transactions of a worker. Larger: less broker load (2 to 4 ms of a
    core each), but more lateness under exactly_once.
    """
    transaction_interval_ms_max: DurationMs = Field(default=100, ge=1, le=INTERVAL_MS_MAX)
    """Longest time between two transactions; load decides between the two. Under at_least_once
    always this.
    """
    transactions_per_s_max: int = Field(default=200, ge=1, le=100_000)
    """Transactions per second of all the node's workers."""
    batch_records_max: int = Field(default=20_000, ge=1, le=1_000_000)
    """Records in one transaction, at least 200 of a slice. Larger: more throughput, longer
    transactions.
    """
    batch_bytes_max: Bytes = ByteSize(32 * MIB)
    """Approximate bytes in one transaction."""
    max_delay_ms: DurationMs = Field(default=10 * YEAR_MS, ge=1_000, le=100 * YEAR_MS)
    """Longest accepted delay; a longer one is a dead letter, or shortened (`clamp`)."""
    clamp: bool = False
    """Shorten a delay above `max_delay_ms` to it."""
    past_due: Literal["deliver", "dead-letter"] = "deliver"
    """Action for a record that was due before it was written."""
    header_bytes_max: HeaderBytes = ByteSize(4_096)
    """Longest value of a `delay-*` header; a longer one: dead letter."""
    id_bytes_max: HeaderBytes = ByteSize(512)
    """Longest `delay-id`; a longer one: dead letter."""
    id_partitions: int | None = Field(default=None, ge=0)
    """Partitions over which ids are spread, so that a cancel from any client finds its record.
    Default: those that a delay topic has when it is first served. 0: a record and its cancel must
    be sent to the same partition.
    """
    roll_window_ms: DurationMs = Field(default=0, ge=0, le=366 * DAY_MS)
    """Records due later than this are appended to their delay topic again, before retention deletes
    them. 0: the span of the wheel.
    """
    park_delays_ms: Annotated[
        tuple[Annotated[DurationMs, Field(ge=1, le=YEAR_MS)], ...], ListText
    ] = Field(
        default=(1_000, 5_000, 30_000, 2 * MINUTE_MS, 10 * MINUTE_MS), min_length=1, max_length=100
    )
    """Delays before each retry at a target that fails. After the last retry: dead letter."""
    missing_target: Literal["park", "dead-letter"] = "park"
    """Action for a record whose target does not exist. `park`: try again, as `park_delays_ms` says.
    """
    held_ms: DurationMs = Field(default=MINUTE_MS, ge=1_000, le=60 * MINUTE_MS)
    """Wait before a record for a paused target is tried again; grows up to tenfold. Smaller: faster
    after the pause, more requeued records.
    """
    slot_records_max: int = Field(default=0, ge=0, le=100_000_000)
    """Records of one shard that are delivered in the second in which they are due; more:
    `slot_policy`. 0: no limit.
    """
    slot_policy: Literal["accept", "spread", "dead-letter"] = "accept"
    """Records above that: deliver and count them, spread them over later seconds, or dead letter.
    """
    clock_tolerance_ms: DurationMs = Field(default=500, ge=10, le=MINUTE_MS)
    """Allowed difference between this machine's clock and the brokers'; above, the node delivers
    nothing.
    """

    @model_validator(mode="after")
    def _interval_in_order(self) -> Self:
        if self.transaction_interval_ms_min > self.transaction_interval_ms_max:
            raise ValueError("transaction_interval_ms_min is above transaction_interval_ms_max")
        if self.id_bytes_max > self.header_bytes_max:
            raise ValueError("id_bytes_max is above header_bytes_max")
        return self


_LEVEL_MS_MIN = 100


class Levels(Section):
    """Level topics: each delays all its records by one fixed time. Its name is the prefix and a
    number from 1.
    """

    preset: Literal["none", "default", "rocketmq"] = "none"
    """List of delays. `default`: 5s 10s 30s 1m 2m 5m 10m 20m 30m 45m 1h 2h. `rocketmq`: the 18 of
    RocketMQ. `none`: `delays_ms`.
    """
    delays_ms: Annotated[
        tuple[Annotated[DurationMs, Field(ge=_LEVEL_MS_MIN, le=YEAR_MS)], ...], ListText
    ] = Field(default=(), max_length=100)
    """Delays of the levels, ascending, instead of `preset`. Add new ones at the end."""
    prefix: Annotated[str, names_of(1, 240)] = "delay_topic_"
    """Prefix of level topics; level 3 of the default is `delay_topic_3`."""
    fetch_ahead_records: int = Field(default=5_000, ge=10, le=1_000_000)
    """Records of a partition that are held in memory before they are due. Larger: faster bursts."""
    fetch_ahead_bytes: Bytes = ByteSize(8 * MIB)
    """The same as bytes of keys, values and headers."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.preset != "none" and self.delays_ms:
            raise ValueError("set preset or delays_ms, not both")
        if any(a >= b for a, b in pairwise(self.delays_ms)):
            raise ValueError("delays_ms must ascend: level 2 waits longer than level 1")
        return self

    @property
    def all_ms(self) -> tuple[int, ...]:
        # Ascending: level 1 has the first.
        return PRESETS.get(self.preset, self.delays_ms)

    @property
    def by_topic(self) -> dict[str, int]:
        levels = enumerate(self.all_ms, start=1)
        return {level_topic(level, self.prefix): level_ms for level, level_ms in levels}


RatePerS = Annotated[int, Field(ge=0, le=10_000_000)]


class Rates(Section):
    """Limits of the rate at which target topics get records, for the whole cluster."""

    per_s: dict[TopicPattern, RatePerS] = Field(default_factory=dict, max_length=1_000)
    """Records per second by pattern of target topics; the first that matches counts. 0: no limit.
    """
