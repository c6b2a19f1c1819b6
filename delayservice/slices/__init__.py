"""The loop of a worker and its lanes: poll, store, due, settle, commit, prune."""
