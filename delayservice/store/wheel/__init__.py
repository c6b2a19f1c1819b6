"""File time wheel: one append-only file for each slot of due times, for all shards of a worker.

The Kafka log is its write-ahead log; ``docs/internals/format-wheel.md`` has layout, invariants and
recovery. ``append`` puts a record into its slot's rows in memory. A flush writes these as blocks to
the slot's file. ``sync`` makes the files durable, and last the horizon of all shards. ``read_due``
reads from windows near the hand. ``prune`` drops slots of a shard; a file is removed when all
shards have dropped its slot.
"""

from delayservice.store.wheel.store import WheelStore
from delayservice.store.wheel.wheel import FORMAT, Wheel, WheelOptions

__all__ = ["FORMAT", "Wheel", "WheelOptions", "WheelStore"]
