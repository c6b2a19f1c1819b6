"""Basics that every other package may import: errors, clocks, fault points."""
