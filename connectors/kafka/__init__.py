"""Kafka in, Kafka out: consumers, transactions, checkpoints, topics."""
