"""Decisions about records and slices: cursor, shard, settlement. Pure: no I/O, no clock."""
