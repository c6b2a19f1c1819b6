"""``delayservice spark drill``: a history with known defects, which Spark's jobs must find.

``users``, ``service``, ``outputs`` and ``history`` write what producers and a delay service would
have written. ``scenes`` are defects in it, and sound cases that look like defects; each is played
on a ``stage``. ``replicas`` keeps copies and damages some of them, ``nodes`` answers
for them. All of that is written from the documents alone: it shares no code with the jobs under
test, nor with their readers of records, copies and digests. ``judge`` compares the findings with
the injected defects, ``run`` puts it together.
"""
