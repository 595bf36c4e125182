#!/bin/bash
#SBATCH --job-name=neuron
#SBATCH --partition=compute-gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gres=neuron:trainium:16
#SBATCH --output=neuron-%j.log
# Trains on whole trn1.32xlarge nodes with PyTorch: sbatch examples/neuron.sh /apps/venv train.py [ARGUMENT …]
# The first argument is a virtual environment on a shared folder, with AWS Neuron's packages: torch-neuronx and
# neuronx-cc. The nodes have the driver, the runtime, the collective library and the tools.
set -eu
environment=$1
shift
DEVICES=16 # as in --gres
CORES=${CORES:-2} # NeuronCores that a program sees on each device: 2 of Trainium, 4 of Trainium2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Collectives between nodes go over EFA, and read the devices' memory themselves.
export FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1
srun /opt/aws/neuron/bin/neuron-ls
srun "$environment/bin/torchrun" --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$((DEVICES * CORES))" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 20000))" "$@"
