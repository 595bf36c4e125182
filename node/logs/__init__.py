"""The `slurm-stacks logs` command on the login machine, which reads the cluster's logs."""
