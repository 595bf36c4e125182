"""The cluster's logs, read where they lie: `slurm-stacks logs` on the login machine."""
