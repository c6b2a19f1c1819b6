"""Queries of people to a running loop, and their answers."""
