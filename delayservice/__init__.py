"""Delayed delivery for Apache Kafka: exact to the millisecond, exactly once."""

__version__ = "0.1.0"
