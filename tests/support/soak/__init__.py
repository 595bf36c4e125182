"""A soak: random jobs, faults and restarts on a real local cluster, and an audit of what became of them."""
