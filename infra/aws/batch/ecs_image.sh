#!/bin/bash
# Makes this machine one that AWS Batch can use: Docker, NVIDIA's runtime as Docker's default, and the ECS agent. It
# runs after the steps that placed the driver and the Lustre client, on a machine that becomes an image.
#
# Arguments: gpu or plain, the region, and a container image to keep in Docker's cache, or nothing.
set -euo pipefail

gpu=$1 region=$2 cached=${3-}
toolkit=1.19.1-1 # https://github.com/NVIDIA/nvidia-container-toolkit/releases
repository=https://nvidia.github.io/libnvidia-container
# The repository's only key, as Google's initialization-actions for Dataproc have it for the same packages.
toolkit_key=C95B321B61E88C1809C4F759DDCAE044F796ECB0
packages=(nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1)

export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get --quiet --yes -o DPkg::Lock::Timeout=300 "$@"; }
fetch() { curl --fail --silent --show-error --location --retry 5 --output "$1" "$2"; }

# fetch_key FILE URL FINGERPRINT: fetch a file with keys, which must have this key and no other (but its subkeys,
# which it has signed).
fetch_key() {
    local home found
    fetch "$1" "$2"
    home=$(mktemp -d)
    found=$(gpg --homedir "$home" --batch --quiet --show-keys --with-colons "$1" |
        awk -F: '$1 == "pub" || $1 == "sub" {kind = $1} $1 == "fpr" && kind == "pub" {print $10}' || true)
    rm -r "$home"
    if [ "$found" != "$3" ]; then
        rm "$1"
        echo "$2: the key is ${found:-unreadable}, and should be $3" >&2
        exit 1
    fi
}

apt_get update
apt_get install --no-install-recommends docker.io ca-certificates curl gpg gpgv nfs-common
if [ "$gpu" = gpu ]; then
    keyring=/etc/apt/keyrings/nvidia-container-toolkit.asc
    install -d -m 755 /etc/apt/keyrings
    fetch_key "$keyring" "$repository/gpgkey" "$toolkit_key"
    echo "deb [signed-by=$keyring] $repository/stable/deb/amd64 /" \
        >/etc/apt/sources.list.d/nvidia-container-toolkit.list
    apt_get update
    apt_get install --allow-downgrades "${packages[@]/%/=$toolkit}"
    apt-mark hold "${packages[@]}"
    # As published: Docker's default runtime, so that every container sees the GPUs that ECS gives it.
    nvidia-ctk runtime configure --runtime=docker --set-as-default
fi

# AWS has the agent's package in a bucket of each region, with a signature by this key (ECS developer guide,
# "Installing the agent"). The key's file is where AWS's own ecs-anywhere-install.sh takes it from.
agent_key=F34C3DDAE72926B079BEAEC6BCE9D9A42D51784F
package=https://s3.$region.amazonaws.com/amazon-ecs-agent-$region/amazon-ecs-init-latest.amd64.deb
folder=$(mktemp -d)
agent=$folder/amazon-ecs-init.deb
fetch_key "$folder/key" https://raw.githubusercontent.com/aws/amazon-ecs-agent/master/scripts/amazon-ecs-agent.gpg \
    "$agent_key"
gpg --homedir "$folder" --batch --quiet --dearmor --output "$folder/keyring" "$folder/key"
fetch "$agent" "$package"
fetch "$agent.asc" "$package.asc"
gpgv --homedir "$folder" --keyring "$folder/keyring" "$agent.asc" "$agent" || {
    echo "$package is not signed by $agent_key" >&2
    exit 1
}
# apt reads the file as a user of its own.
chmod 755 "$folder"
apt_get install "$agent"
rm -r "$folder"
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
