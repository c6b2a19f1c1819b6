"""The file time wheel: append-only files by due time, the Kafka log as their write-ahead log.

``docs/format-wheel.md`` has layout, invariants and recovery. The way of a record: ``append`` puts
it into its slot's rows in memory, a flush writes rows as blocks to slot files, ``sync`` makes all
of it durable and then, last, the horizon; hours and minutes that come near are opened into finer
slots; ``read_due`` takes from windows near the hand; ``prune`` removes whole files.
"""

from delayservice.store.wheel.store import WheelOptions, WheelStore

__all__ = ["WheelOptions", "WheelStore"]
