"""``delayservice dev bench`` measures rate, lateness and resource use of the service on a real
cluster.

A load process sends records, a judge process reads the target topic and compares each record with
what was sent, and a passthrough process copies records without the service.
"""
