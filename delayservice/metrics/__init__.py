"""Counts of a node, and their export to Prometheus."""
