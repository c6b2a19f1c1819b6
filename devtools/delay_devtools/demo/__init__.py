"""``make demo``: the main job on real Kafka, with its nodes killed and frozen, and judged.

``story`` is the run from the first broker to the verdict, ``sending`` the load, ``acts`` what is
done to the nodes. ``timeline`` tells who owned what and why, ``report`` shows everything.
"""
