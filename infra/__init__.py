"""slurm-stacks: what runs on the engineer's machine, and in `infra.node` what runs on the cluster's."""
