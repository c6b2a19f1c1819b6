"""Comparison with other brokers that delay messages: RocketMQ 5 and NATS JetStream.

All systems get the same records from the bench's load process, are checked by its judge process,
and run one after the other on this machine. The clients in this package have those methods of Kafka
clients that the two processes call.
"""
