"""The file time wheel: one append-only file for each slot of due times, for all shards of a worker.

The Kafka log is its write-ahead log; ``docs/internals/format-wheel.md`` has layout, invariants and
recovery. The way of a record: ``append`` puts it into its slot's rows in memory, a flush writes
them as blocks to the slot's file, ``sync`` makes all of it durable and then, last, the horizon of
all shards; ``read_due`` takes from windows near the hand; ``prune`` lets go of slots, and their
files are removed when all shards have.
"""

from delayservice.store.wheel.store import WheelStore
from delayservice.store.wheel.wheel import FORMAT, Wheel, WheelOptions

__all__ = ["FORMAT", "Wheel", "WheelOptions", "WheelStore"]
