"""The admin API and the page: a node's answers to people, and the changes that they can ask for."""
