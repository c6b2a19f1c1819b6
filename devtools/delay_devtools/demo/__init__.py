"""``delayservice demo``: the service on real Kafka; its nodes are killed and frozen (SIGSTOP), and
every record is checked.

``story`` runs the whole demo, ``acts`` causes the faults of nodes, ``choices`` has options and
settings. ``timeline`` derives the owners of slices over time and why they changed, ``report`` shows
the results.
"""
