"""Queries of people about pending records to a running worker, and its answers."""
