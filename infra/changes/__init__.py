"""What a change of the stack file does to a cluster that is up: the words, the comparison, its jobs."""
