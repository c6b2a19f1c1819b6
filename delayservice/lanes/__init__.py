"""How the records of a slice travel from their delay topics to their targets."""
