"""Settings of the two stores on disk."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    ByteSize,
    Field,
)

from delayservice.config.units import (
    DAY_MS,
    MIB,
    Bytes,
    DurationMs,
    Section,
)


class Wheel(Section):
    """The file time wheel: an append-only file for each slot of due times, for all shards of a
    worker. Its bounds are those of a worker, whatever the number of its shards.
    """

    slots: int = Field(
        default=720,
        ge=60,
        le=100_000,
        description="Slots of the wheel; times `slot_ms`, this is how far it reaches.",
    )
    slot_ms: DurationMs = Field(
        default=10_000,
        ge=1_000,
        le=DAY_MS,
        description="Width of a slot; delivery is exact to the millisecond at any width. For a "
        "wheel of days, use wider slots (14 d: 2,016 of 10 min). A change rebuilds the wheel "
        "from Kafka.",
    )
    buffer_bytes_max: Bytes = Field(
        default=ByteSize(32 * MIB),
        description="Appended bytes a worker may hold before it writes files.",
    )
    near_bytes_max: Bytes = Field(
        default=ByteSize(64 * MIB),
        description="Bytes of the next slots that a worker keeps in memory.",
    )
    sync_bytes: Bytes = Field(
        default=ByteSize(32 * MIB), description="Bytes of log to read again after a crash, about."
    )
    open_files_max: int = Field(
        default=128, ge=4, le=65_536, description="Open slot files of a worker."
    )

    @property
    def window_ms(self) -> int:
        """Span of the wheel, milliseconds."""
        return self.slots * self.slot_ms


class RocksDb(Section):
    """The RocksDB store."""

    write_buffer_bytes: Bytes = Field(
        default=ByteSize(32 * MIB), description="Memory table of a worker; two may exist."
    )
    block_cache_bytes: Bytes = Field(
        default=ByteSize(32 * MIB), description="Read cache of a worker."
    )
    sync_bytes: Bytes = Field(
        default=ByteSize(64 * MIB), description="Bytes of log to read again after a crash, at most."
    )
    compression: Literal["none", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="Of data on disk."
    )
