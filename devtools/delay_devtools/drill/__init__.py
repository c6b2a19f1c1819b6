"""``delayservice spark drill``: a history with known defects, and whether Spark's jobs find them.

``users``, ``service``, ``outputs`` and ``history`` write what producers and a delay service would
have written. ``scenes`` are what goes wrong in it, and what only looks so; a ``stage`` has them
played among the rest. ``replicas`` keeps copies and spoils some of them, ``nodes`` answers for
them. All of that is made from the documents alone: it shares no code with the jobs that are judged,
nor with what they read records, copies and digests by. ``judge`` holds the
findings against what was injected, ``run`` puts it together.
"""
