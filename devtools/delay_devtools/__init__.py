"""Development tools of the delay service: Kafka and ZooKeeper on this machine, the demo, the
benches, and the drill of the Spark jobs.
"""
