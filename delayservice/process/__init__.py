"""The processes of a node: the supervisor, its workers, and what they need of the machine."""
