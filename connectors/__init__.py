"""The edges: Kafka and Spark."""
