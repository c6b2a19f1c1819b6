"""``delayservice bench`` measures rate, lateness and resource use of the service on a real cluster.

``stored``, ``paced``, ``standing`` and ``failover`` define the benches; a ``stand`` makes their
topics and starts service and helper processes. The processes that send (load), check (judge) and
copy records (passthrough) are ``*_process`` modules, apart so that they share no interpreter;
``helper`` controls one. ``tally`` counts errors, ``trace`` keeps arrival times by slice,
``sampling`` measures processes from outside, ``figures`` contains the results, ``report`` prints
them.
"""
