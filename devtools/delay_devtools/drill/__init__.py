"""``delayservice dev drill``: a real run of the service with known defects, which Spark's jobs
must find.

A *story* is what users write together, with one fate. An *operator* spoils one story in the archive
of the run, as a broken service or a stranger would. A *world* is what a job judges: ``archive``,
``disks`` (copies of the node's store), and ``follow`` (spoilt records in fresh topics, step by
step).
"""
