#!/bin/sh
#SBATCH --job-name=counting
#SBATCH --requeue
#SBATCH --output=counting.log
#SBATCH --open-mode=append
# Counts to 60, a number a second. What it has reached lies in a file of the folder from which it was submitted,
# so that the next start goes on from there, on whatever node that is.
reached=$(cat counting.txt 2>/dev/null || echo 0)
echo "start ${SLURM_RESTART_COUNT:-0} on $SLURMD_NODENAME: goes on after $reached"
while [ "$reached" -lt 60 ]; do
    sleep 1
    reached=$((reached + 1))
    # A file that is written half is worse than none: the new one replaces the old one whole.
    echo "$reached" >counting.new && mv counting.new counting.txt
done
echo "done"
