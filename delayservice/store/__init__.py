"""Stores of pending records: indexes of the Kafka log that can always be rebuilt."""
