#!/bin/bash
# Makes this machine one that AWS Batch can use: Docker, NVIDIA's runtime as Docker's default, and the ECS agent. It
# runs after the steps that placed the driver and the Lustre client, on a machine that becomes an image.
#
# Arguments: gpu or plain, the region, and a container image to keep in Docker's cache, or nothing.
set -euo pipefail

gpu=$1 region=$2 cached=${3-}
toolkit=1.19.1-1 # https://github.com/NVIDIA/nvidia-container-toolkit/releases
repository=https://nvidia.github.io/libnvidia-container
packages=(nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1)

export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get --quiet --yes -o DPkg::Lock::Timeout=300 "$@"; }
fetch() { curl --fail --silent --show-error --location --retry 5 --output "$1" "$2"; }

apt_get update
apt_get install --no-install-recommends docker.io ca-certificates curl nfs-common
if [ "$gpu" = gpu ]; then
    keyring=/etc/apt/keyrings/nvidia-container-toolkit.asc
    install -d -m 755 /etc/apt/keyrings
    fetch "$keyring" "$repository/gpgkey"
    echo "deb [signed-by=$keyring] $repository/stable/deb/amd64 /" \
        >/etc/apt/sources.list.d/nvidia-container-toolkit.list
    apt_get update
    apt_get install --allow-downgrades "${packages[@]/%/=$toolkit}"
    apt-mark hold "${packages[@]}"
    # As published: Docker's default runtime, so that every container sees the GPUs that ECS gives it.
    nvidia-ctk runtime configure --runtime=docker --set-as-default
fi

# AWS has the agent's package in a bucket of each region (ECS developer guide, "Installing the agent").
agent=/var/tmp/amazon-ecs-init.deb
fetch "$agent" "https://s3.$region.amazonaws.com/amazon-ecs-agent-$region/amazon-ecs-init-latest.amd64.deb"
apt_get install "$agent"
rm -f "$agent"
install -d -m 755 /etc/ecs /var/log/ecs /var/lib/ecs/data
{
    echo 'ECS_AVAILABLE_LOGGING_DRIVERS=["json-file","awslogs"]'
    echo ECS_ENABLE_TASK_IAM_ROLE=true
    echo ECS_ENABLE_TASK_IAM_ROLE_NETWORK_HOST=true
    echo ECS_ENABLE_TASK_ENI=true
    # Containers reach their task's role and never the machine's.
    echo ECS_AWSVPC_BLOCK_IMDS=true
    [ "$gpu" != gpu ] || echo ECS_ENABLE_GPU_SUPPORT=true
} >/etc/ecs/ecs.config
systemctl enable docker ecs
systemctl restart docker
if [ -n "$cached" ]; then
    DOCKER_CONFIG=$(mktemp -d)
    export DOCKER_CONFIG
    host=${cached%%/*}
    case $host in
    *.dkr.ecr.*)
        # The helper asks for a token with this machine's role, so that no password is in the image.
        apt_get install --no-install-recommends amazon-ecr-credential-helper
        echo "{\"credHelpers\": {\"$host\": \"ecr-login\"}}" >"$DOCKER_CONFIG/config.json"
        ;;
    esac
    docker pull --quiet "$cached"
    rm -rf "$DOCKER_CONFIG"
    unset DOCKER_CONFIG
fi

# What is this machine's own: the agent's state would make every machine the same container instance.
systemctl stop ecs docker || true
rm -rf /var/lib/ecs/data/* /var/log/ecs/*
apt-get clean
rm -rf /var/lib/apt/lists/*
