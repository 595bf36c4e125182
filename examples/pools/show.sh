#!/bin/sh
# A training loses its spot machines, and there are no others: it goes on on machines on demand.
set -eu
cluster() { verb=$1; shift; ./cluster "$verb" --stack pools "$@"; }
chaos() { verb=$1; shift; ./cluster chaos "$verb" --stack pools "$@"; }

cp examples/pools/Pulumi.pools.yaml .
cluster up # with a first run on spot machines, which nobody disturbs

# Slurm gives no job a node that still goes off: it would choose the next pool.
until [ "$(cluster exec -- sinfo --noheader --Node --partition=train --format=%T | sort -u)" = "idle~" ]; do sleep 1; done

cluster run --nodes 2 & # the second run
run=$!
until nodes=$(cluster exec -- squeue --noheader --states=RUNNING --format=%N) && [ -n "$nodes" ]; do sleep 1; done
sleep 5
echo "The training runs on $nodes. Now spot dries up, and the cloud takes these machines back."
chaos set capacity.train/spot=0
for node in train-spot-0 train-spot-1; do chaos preempt "$node" --notice 5; done
wait "$run"

cluster report # both runs: the weights are the same, the nodes are not
