"""Where pending records wait: an index of the Kafka log that can always be rebuilt."""
