"""``delayservice bench``: rate, lateness and size of the service, on a real cluster.

``cases`` define each bench, with a ``stand`` (topics, service, helpers) of their own. Load, judge
and passthrough are ``*_process`` modules, each in a process of its own so that they do not share an
interpreter; a ``helper`` is the parent's end of one. A ``tally`` counts errors of a load, a
``trace`` has the arrival times of each slice's records. ``sampling`` measures the processes from
outside, ``figures`` contains the results, ``report`` shows them.
"""
