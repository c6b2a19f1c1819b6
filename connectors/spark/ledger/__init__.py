"""The expected outcome of each source record, derived from the log, and what settles it."""
