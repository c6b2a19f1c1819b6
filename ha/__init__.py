"""Ownership of slices: which node owns which."""
