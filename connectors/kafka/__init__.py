"""Connects the service to Kafka: consumers, transactions, checkpoints, topics."""
