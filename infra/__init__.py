"""slurm-stacks: what runs in `pulumi up`: the stack file, the design, the resources."""
