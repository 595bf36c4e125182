#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --time=5

# One line from every node that Slurm gave to this job.
srun sh -c 'echo "hello from $SLURMD_NODENAME"'
