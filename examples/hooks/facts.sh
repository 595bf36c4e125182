#!/bin/sh
# Says what this machine is. `./cluster logs NODE` and the boot report show what it prints.
#
# Argument: a word that begins each line.
set -eu
word=${1:-facts}
echo "$word: $SLURM_STACKS_HOST boots as $SLURM_STACKS_ROLE"
echo "$word: $(nproc) CPUs, $(awk '/^MemTotal/ {print int($2 / 1024)}' /proc/meminfo) MiB of memory"
