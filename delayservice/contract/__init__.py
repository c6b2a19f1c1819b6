"""Meaning of records: headers, codes, aliases, times, recurrence. Pure: no I/O, no clock."""
