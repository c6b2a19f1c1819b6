"""Settings of the stores ``wheel`` and ``rocksdb``, of digests of copies, and of disk use."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ByteSize, Field, model_validator

from delayservice.config.units import DAY_MS, MIB, Bytes, DurationMs, Section
from delayservice.engine.disk import Watermarks


class WheelSettings(Section):
    """The store `wheel`: one append-only file per slot of due times. Limits are per worker."""

    slots: int = Field(default=720, ge=60, le=100_000)
    """Number of slots; the wheel spans `slots` times `slot_ms`."""
    slot_ms: DurationMs = Field(default=10_000, ge=1_000, le=DAY_MS)
    """Span of due times in one file, without effect on precision. A change rebuilds the store from
    Kafka.
    """
    buffer_bytes_max: Bytes = ByteSize(32 * MIB)
    """Memory for appended records before they are written. Larger: fewer, larger writes."""
    near_bytes_max: Bytes = ByteSize(64 * MIB)
    """Memory for records of the next slots. Larger: fewer reads when due."""
    sync_bytes: Bytes = ByteSize(32 * MIB)
    """Appended bytes between two syncs: about what is read again from Kafka after a crash."""
    open_files_max: int = Field(default=128, ge=4, le=65_536)
    """Slot files that are kept open."""

    @property
    def window_ms(self) -> int:
        return self.slots * self.slot_ms


class RocksDb(Section):
    """The store `rocksdb`. Limits are per worker."""

    write_buffer_bytes: Bytes = ByteSize(32 * MIB)
    """Size of a memory table of RocksDB; a worker may have two. Larger: fewer flushes."""
    block_cache_bytes: Bytes = ByteSize(32 * MIB)
    """Memory of the read cache."""
    sync_bytes: Bytes = ByteSize(64 * MIB)
    """Appended bytes between two syncs: the most that is read again from Kafka after a crash."""
    compression: Literal["none", "snappy", "lz4", "zstd"] = "lz4"
    """Compression of data on disk."""


class Digests(Section):
    """Counts and hashes of the pending records of each hour, by which copies are compared."""

    enabled: bool = True
    """`false`: no comparison of copies, no figures by target."""
    interval_ms: DurationMs = Field(default=60_000, ge=1_000, le=DAY_MS)
    """Time between two digests of a busy slice; the same on every node."""
    scan_interval_ms: DurationMs = Field(default=DAY_MS, ge=60_000, le=366 * DAY_MS)
    """Time in which each copy is read from disk once, to find damage."""


class Disk(Section):
    """Reactions to a full disk under `node.state_dir`. Delivery never stops."""

    warn_percent: float = Field(default=75, ge=1, le=100)
    """Used percent from which a warning is logged."""
    stop_percent: float = Field(default=85, ge=1, le=100)
    """Used percent from which new records stay in Kafka, unstored, with an alarm."""
    full_percent: float = Field(default=90, ge=1, le=100)
    """Used percent from which stores are no longer synced; after a crash, more is read again from
    Kafka.
    """
    resume_below_percent: float = Field(default=2, ge=0, le=50)
    """Percentage points below a limit at which its reaction ends."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.warn_percent <= self.stop_percent <= self.full_percent:
            raise ValueError("warn_percent, stop_percent and full_percent must ascend")
        return self

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.warn_percent, self.stop_percent, self.full_percent, self.resume_below_percent
        )
