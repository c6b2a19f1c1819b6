"""Modules shared by all jobs: sessions, topics, cuts, files, progress and pages."""
