"""Reports lateness, load and outcomes as a page and as data."""
