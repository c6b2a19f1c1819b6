"""File time wheel: one append-only file for each slot of due times, for all shards of a worker.

The Kafka log is its write-ahead log; ``docs/internals/format-wheel.md`` has layout, invariants and
recovery. ``append`` adds a record to the rows in memory of its slot. A flush writes these rows as
blocks to the slot's file. ``sync`` makes the files durable, and last a small file, the horizon,
that lists their content. ``read_due`` reads from windows: rows of the next slots in memory.
``prune`` drops slots of a shard; a file is removed when all shards have dropped its slot.
"""

from delayservice.store.wheel.wheel import FORMAT, Wheel, WheelOptions, WheelStore

__all__ = ["FORMAT", "Wheel", "WheelOptions", "WheelStore"]
