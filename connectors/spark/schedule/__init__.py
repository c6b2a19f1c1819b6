"""Writes delayed records in bulk."""
