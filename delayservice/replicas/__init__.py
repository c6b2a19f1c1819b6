"""Copies of pending records on several nodes: digests to compare, and commands to repair them."""
