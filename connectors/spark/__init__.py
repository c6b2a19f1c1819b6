"""Spark jobs that prove, repair, report and schedule. They need the extra ``spark``."""
