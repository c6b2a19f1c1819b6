"""``delayservice bench``: rate, lateness and size of the service, on a real cluster.

``cases`` say what each bench does, with a ``stand`` (topics, service, helpers) of their own. Load,
judge and passthrough are ``*_process`` modules, each in a process of its own so that none takes
time from another's interpreter; a ``helper`` is the parent's end of one. A ``tally`` says what is
wrong with a load, a ``trace`` when each slice's records came. ``sampling`` looks at the
processes from outside, ``figures`` holds what was found, ``report`` shows it.
"""
