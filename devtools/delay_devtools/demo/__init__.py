"""``make demo``: the main job on real Kafka, with its nodes killed and frozen, and judged.

``story`` is the run from the first broker to the verdict, ``sending`` the load, ``acts`` the
faults of nodes. ``timeline`` derives the owners over time and why, ``report`` shows the results.
"""
