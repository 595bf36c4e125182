"""`./cluster` for stacks on AWS Batch: a queue and jobs in the place of Slurm and a login machine."""
