"""Admin API and web page of a node: they show its state, and change pending records and pauses."""
