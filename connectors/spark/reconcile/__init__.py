"""Compare the copies that nodes hold, and plan repairs."""
