"""A short test of a running service: delayed records are sent, and what arrives is judged."""
