"""Compares the copies that nodes hold, and plans repairs."""
