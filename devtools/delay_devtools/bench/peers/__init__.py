"""Comparison with other brokers that delay messages: RocketMQ 5 and NATS JetStream.

All systems get the same load from the bench's load process, are judged by its judge process, and
run one after the other on this machine. The clients here have the methods of Kafka's that these
processes use.
"""
