"""Comparison with other brokers that delay messages: RocketMQ 5 and NATS JetStream.

All systems get the same load from the bench's load process, are judged by its judge process, and
run one after the other on this machine. The clients in this package have those methods of Kafka
clients that the two processes call.
"""
