"""Smoke test of a running service: sends delayed records, and checks what arrives."""
