"""Writes delayed records in bulk, from any DataFrame or from a Kafka topic."""
