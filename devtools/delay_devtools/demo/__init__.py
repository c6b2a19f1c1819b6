"""``delayservice dev demo``: the service on real Kafka; its nodes are killed and frozen
(SIGSTOP), and every record is checked.
"""
