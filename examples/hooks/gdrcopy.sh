#!/bin/bash
# Installs GDRCopy on nodes with NVIDIA's driver: builds the kernel module gdrdrv for the running kernel, loads it, and
# makes /dev/gdrdrv. A node on which a step fails does not register with Slurm.
#
# Arguments: NVIDIA's packages gdrdrv-dkms and libgdrapi for Ubuntu 24.04, each as SOURCE#sha256=DIGEST. A source is an
# address (https://…) or a file that nodes see (/apps/…). NVIDIA publishes no checksums: download both packages once,
# look at them, and write what `sha256sum FILE` prints.
# https://developer.download.nvidia.com/compute/redist/gdrcopy/
set -euo pipefail

MODULE=gdrdrv
CACHE=/var/cache/slurm-stacks-gdrcopy
export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get --quiet --yes -o DPkg::Lock::Timeout=300 "$@"; }

fail() {
    echo "GDRCopy: $1" >&2
    exit 1
}

if ! command -v nvidia-smi >/dev/null; then
    echo "GDRCopy: nothing to do, this machine has no NVIDIA driver"
    exit 0
fi
[ "$#" -gt 0 ] || fail "name the packages gdrdrv-dkms and libgdrapi as arguments, each SOURCE#sha256=DIGEST"

install -d -m 700 "$CACHE"
packages=()
for argument in "$@"; do
    source=${argument%%#sha256=*} digest=${argument##*#sha256=}
    [[ $argument == *"#sha256="* && $digest =~ ^[0-9a-f]{64}$ ]] ||
        fail "$argument: a package is SOURCE#sha256=DIGEST, with the 64 digits that sha256sum prints"
    file=$CACHE/$digest.deb
    if ! sha256sum --check --status <<<"$digest  $file" 2>/dev/null; then
        case $source in
        https://*) curl --fail --silent --show-error --location --retry 5 --output "$file" "$source" ;;
        /*) cp -- "$source" "$file" ;;
        *) fail "$source: a source is https://… or the absolute path of a file" ;;
        esac
    fi
    found=$(sha256sum "$file" | cut -d' ' -f1)
    if [ "$found" != "$digest" ]; then
        rm "$file"
        fail "$source has the SHA-256 digest $found, and should have $digest: it is not installed"
    fi
    packages+=("$file")
done

kernel=$(uname -r)
if ! modinfo "$MODULE" >/dev/null 2>&1; then
    # The package's own service fails, and apt with it, where the module is not loaded.
    systemctl mask "$MODULE.service"
    # DKMS builds for each kernel that has headers, and a failed build for another kernel would fail the installation.
    for build in /lib/modules/*/build; do
        other=$(basename "$(dirname "$build")")
        if [ "$other" != "$kernel" ] && dpkg -s "linux-headers-$other" >/dev/null 2>&1; then
            apt_get purge "linux-headers-$other"
        fi
    done
    apt_get update
    apt_get install --no-install-recommends "linux-headers-$kernel"
    apt_get install --no-install-recommends "${packages[@]}"
    modinfo "$MODULE" >/dev/null 2>&1 || fail "the module $MODULE was not built for Linux $kernel ($(dkms status "$MODULE")); \
its log is /var/lib/dkms/$MODULE/*/build/make.log, and a newer gdrdrv-dkms may know this kernel"
fi

modprobe "$MODULE" || fail "the kernel does not load $MODULE; Secure Boot loads signed modules only, and this one is not"
major=$(awk -v name="$MODULE" '$2 == name {print $1}' /proc/devices)
[ -n "$major" ] || fail "$MODULE is loaded, and /proc/devices has no device of its own"
# Each load may get another number. Every user may open the device, as with the package's own service: the driver maps
# only memory of the process that asks.
rm -f "/dev/$MODULE"
mknod --mode=666 "/dev/$MODULE" c "$major" 0
echo "GDRCopy $(dpkg-query --show --showformat='${Version}' gdrdrv-dkms)"
