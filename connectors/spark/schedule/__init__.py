"""Write delayed records in bulk."""
