"""The admin API and the page: queries about a node, and changes of its records and pauses."""
