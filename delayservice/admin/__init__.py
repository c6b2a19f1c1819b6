"""The admin API and the page: what a node tells people, and what they may ask of it."""
