"""The processes of a node: the supervisor, its workers, and their use of the machine."""
