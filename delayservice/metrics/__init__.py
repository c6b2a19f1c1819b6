"""Metrics and status of a node, and their export to Prometheus."""
