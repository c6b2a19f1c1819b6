"""Real Kafka and ZooKeeper on this machine, for the demo, tests and benchmarks."""
