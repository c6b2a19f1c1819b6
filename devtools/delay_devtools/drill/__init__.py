"""``delayservice spark drill``: a history (topics as some days of a delay service leave them) with
known defects, which Spark's jobs must find.

``users``, ``service``, ``outputs`` and ``history`` write what producers and a delay service would
have written. ``scenes`` are defects in it, and sound cases that look like defects; each is played
on a ``stage``. ``replicas`` makes copies and damages some of them; ``nodes`` publishes their
digests, and answers queries for their records. All of that is written from the documents alone: it
shares no code with the jobs under test, nor with their readers of records, copies and digests.
``judge`` compares the findings with the injected defects, ``run`` puts it together.
"""
