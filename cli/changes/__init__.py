"""What a change of the stack file does to a cluster that is up, and to its jobs."""
