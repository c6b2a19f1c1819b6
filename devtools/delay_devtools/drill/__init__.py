"""``delayservice spark drill``: a history (topics as some days of a delay service leave them) with
known defects, which Spark's jobs must find.

It is written from the documents alone and shares no code with the jobs under test, except for
helpers of Kafka clients and the service's store, which writes copies to disks. A *scene* is a
generator that writes a defect, or a sound case that looks like one, by means of a ``stage``: first
as a producer; after each ``yield``, when H and K have passed its records, as the service. A
*schedule* is a record that requests a delay. A *world* is what a job examines: ``topics`` (audit at
the end), ``follow`` (audits while the history is written), ``disks`` or ``digests`` (copies).
"""
