"""Connectors of the delay service to Kafka and to Spark."""
