#!/bin/sh
# This script starts once on each node; torchrun starts the workers of that node.
exec torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="${WORKERS_PER_NODE:-1}" --node-rank="$NODE_RANK" \
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  "$(dirname "$0")/torch_ddp.py" "$@"
