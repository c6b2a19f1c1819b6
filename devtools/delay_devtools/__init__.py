"""Development tools: Kafka and ZooKeeper on this machine, demo, benches, and the drill of Spark
jobs.
"""
