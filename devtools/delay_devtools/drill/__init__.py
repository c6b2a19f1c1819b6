"""``delayservice spark drill``: a history (topics as some days of a delay service leave them) with
known defects, which Spark's jobs must find.

``users``, ``service``, ``outputs`` and ``history`` write what producers and a delay service would
have written. ``scenes`` are generators that write a defect into it, or a sound case that looks like
one; each writes by means of a ``stage``. ``replicas`` makes copies and damages some of them;
``nodes`` publishes their digests, and answers queries for their records. All of that is written
from the documents alone and shares no code with the jobs under test, except for helpers of Kafka
clients and the service's store, which writes copies to disks. ``judge`` compares the findings with
the injected defects, ``run`` puts it together.
"""
