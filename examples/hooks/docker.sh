#!/bin/bash
# Installs Docker from Ubuntu's packages and, on machines with NVIDIA's driver, the NVIDIA Container Toolkit, so that
# `docker run --gpus all` works. Docker's containers run as root and outside of Slurm's limits: give jobs
# `containers: {runtime: pyxis}` or `oci`, and keep Docker for building images.
#
# Arguments: the users who may use Docker (who are then as powerful as root on these machines).
set -euo pipefail

TOOLKIT=1.19.1-1 # https://github.com/NVIDIA/nvidia-container-toolkit/releases
REPOSITORY=https://nvidia.github.io/libnvidia-container
# The repository's only key, as Google's initialization-actions for Dataproc have it for the same packages.
FINGERPRINT=C95B321B61E88C1809C4F759DDCAE044F796ECB0
PACKAGES=(nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1)

export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get --quiet --yes -o DPkg::Lock::Timeout=300 "$@"; }

# primary_keys FILE: the fingerprints of the keys in it, without those of subkeys, which the keys have signed.
primary_keys() {
    local home
    home=$(mktemp -d)
    gpg --homedir "$home" --batch --quiet --show-keys --with-colons "$1" |
        awk -F: '$1 == "pub" || $1 == "sub" {kind = $1} $1 == "fpr" && kind == "pub" {print $10}' || true
    rm -r "$home"
}

if ! command -v dockerd >/dev/null; then
    apt_get update
    apt_get install --no-install-recommends docker.io
fi

if command -v nvidia-smi >/dev/null; then
    keyring=/etc/apt/keyrings/nvidia-container-toolkit.asc
    if [ ! -e "$keyring" ]; then
        apt_get install --no-install-recommends ca-certificates curl gpg
        install -d -m 755 /etc/apt/keyrings
        curl --fail --silent --show-error --location --retry 5 --output "$keyring.new" "$REPOSITORY/gpgkey"
        found=$(primary_keys "$keyring.new")
        if [ "$found" != "$FINGERPRINT" ]; then
            rm "$keyring.new"
            echo "$REPOSITORY/gpgkey: the key is ${found:-unreadable}, and should be $FINGERPRINT" >&2
            exit 1
        fi
        mv "$keyring.new" "$keyring"
    fi
    echo "deb [signed-by=$keyring] $REPOSITORY/stable/deb/$(dpkg --print-architecture) /" \
        >/etc/apt/sources.list.d/nvidia-container-toolkit.list
    apt_get update
    apt_get install --allow-downgrades "${PACKAGES[@]/%/=$TOOLKIT}"
    apt-mark hold "${PACKAGES[@]}"
    # Docker's default runtime, so that a plain `docker run` sees the GPUs that NVIDIA_VISIBLE_DEVICES names.
    nvidia-ctk runtime configure --runtime=docker --set-as-default
fi

systemctl enable docker
systemctl restart docker
for user in "$@"; do
    usermod --append --groups docker "$user"
done
docker version --format 'Docker {{.Server.Version}} runs'
