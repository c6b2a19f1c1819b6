"""Reports lateness of deliveries, pending load and outcomes, as an HTML page and as data."""
