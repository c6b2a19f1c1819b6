"""Ownership of slices: election and placement of the owner of each slice."""
