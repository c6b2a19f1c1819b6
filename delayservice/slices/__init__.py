"""The loop of a worker and its lanes: polls, stores, settles, commits and prunes records."""
