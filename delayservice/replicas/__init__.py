"""Replicas' stored records: digests to compare them by, and commands to repair them."""
