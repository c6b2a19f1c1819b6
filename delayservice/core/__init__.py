"""Pure decisions: no I/O and no clock reads."""
