#!/bin/bash
#SBATCH --job-name=keras-job
#SBATCH --nodes=2
#SBATCH --output=out-keras.txt
# shellcheck disable=SC1091,SC2086
# The published script. Only its first line is another one: it was #!/bin/sh.
echo $SLURMD_NODENAME
echo $SLURM_JOB_NODELIST
source $HOME/tf-venv/bin/activate
srun --nodes=2 python3 keras.py
