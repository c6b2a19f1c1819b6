"""Settings: their sections, bounds and defaults, and the places that they are read from."""
