#!/bin/bash
# Installs Enroot and Pyxis, which add `srun --container-image`, `--container-mounts` and more to Slurm. Both are built
# from their source, at commits that git verifies: Pyxis loads only into the release of Slurm for whose headers it was
# built. `containers: {runtime: pyxis}` in the stack file installs packages of both by their hashes, and checks more.
#
# It belongs on all roles: srun and sbatch learn the options on the machines where users submit, slurmd does the work.
#
# Argument: the folder of images that were fetched. A shared one spares each node the download; a local one is faster.
set -euo pipefail

ENROOT=https://github.com/NVIDIA/enroot.git
ENROOT_COMMIT=bd51f53b6fa954805ae3e1985c5dc7594ff66d05 # v4.1.2
PYXIS=https://github.com/NVIDIA/pyxis.git
PYXIS_COMMIT=107519944221822ea1dace4db8e7234b2eaa4cd5 # v0.24.0
cache=${1:-/var/cache/enroot}

export DEBIAN_FRONTEND=noninteractive
apt_get() { apt-get --quiet --yes -o DPkg::Lock::Timeout=300 "$@"; }
apt_get update
apt_get install --no-install-recommends ca-certificates gcc git libc6-dev linux-libc-dev make musl-tools libslurm-dev \
    bash curl gawk jq parallel passwd squashfs-tools zstd bsdextrautils pigz libcap2-bin makeself

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A commit's id is a hash of all that it holds: git refuses anything else.
source_of() {
    git init --quiet "$work/$1"
    git -C "$work/$1" fetch --quiet --depth 1 "$2" "$3"
    git -C "$work/$1" checkout --quiet "$3"
}

source_of enroot "$ENROOT" "$ENROOT_COMMIT"
cd "$work/enroot"
# The distribution's musl, headers and makeself take the place of Enroot's submodules.
install -D -m 755 /usr/share/makeself/makeself.sh deps/dist/makeself/bin/enroot-makeself
mkdir -p deps/dist/musl/bin deps/dist/linux/include deps/{makeself,musl,linux-headers}
ln -s /usr/bin/musl-gcc deps/dist/musl/bin/musl-gcc
ln -s /usr/include/{linux,asm-generic,mtd} "/usr/include/$(gcc -dumpmachine)/asm" deps/dist/linux/include/
touch deps/{makeself,musl,linux-headers}/.stamp
make prefix=/usr sysconfdir=/etc install
setcap cap_sys_admin+pe /usr/bin/enroot-mksquashovlfs
setcap cap_sys_admin,cap_mknod+pe /usr/bin/enroot-aufs2ovlfs
# Ubuntu 24.04 allows user namespaces only to programs that have a profile.
if [ -d /etc/apparmor.d/abi ] && command -v apparmor_parser >/dev/null; then
    install -m 644 conf/apparmor.profile /etc/apparmor.d/enroot
    apparmor_parser --replace /etc/apparmor.d/enroot
fi

# shellcheck disable=SC2016  # Enroot computes $(id -u) for each user.
printf '%s\n' 'ENROOT_RUNTIME_PATH /run/enroot/$(id -u)' "ENROOT_CACHE_PATH $cache/\$(id -u)" \
    'ENROOT_DATA_PATH /var/lib/enroot/$(id -u)' 'ENROOT_MOUNT_HOME yes' >/etc/enroot/enroot.conf
echo 'd /run/enroot 1777 root root -' >/etc/tmpfiles.d/enroot.conf
systemd-tmpfiles --create /etc/tmpfiles.d/enroot.conf
install -d -m 1777 /var/lib/enroot "$cache"

source_of pyxis "$PYXIS" "$PYXIS_COMMIT"
make -C "$work/pyxis" prefix=/usr install
# Slurm's packages have a plugstack.conf that includes this folder; nodes get it from the controller.
install -d /etc/slurm/plugstack.conf.d
echo 'required /usr/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis' >/etc/slurm/plugstack.conf.d/pyxis.conf
enroot version
