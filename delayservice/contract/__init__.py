"""What a record means: headers, codes, aliases, times, recurrence. Pure: no I/O, no clock."""
