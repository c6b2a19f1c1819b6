"""``delayservice bench`` measures rate, lateness and resource use of the service on a real cluster.

``stored``, ``paced``, ``standing`` and ``failover`` define the benches; a ``stand`` makes their
topics and starts service and helper processes. A load process sends records, a judge process reads
the target topic and compares each record with what was sent, and a passthrough process copies
records without the service. They are the ``*_process`` modules, apart so that they share no
interpreter; ``helper`` controls one. ``tally`` counts errors, ``trace`` keeps arrival times by
slice, ``sampling`` measures processes from outside, ``figures`` contains the results, ``report``
prints them.
"""
