"""What each source record must have become, derived from the log, and what settles it."""
