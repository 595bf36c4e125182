"""The image that the clouds' simulated machines boot from: the distribution's own, with a cluster's packages.

It is like a baked image: it has all packages that the boot's steps install, because these machines reach no
package archive. It is made once, and kept in the cache above the distribution's image.

These machines differ from Ubuntu 24.04 on a cloud in the following:

- The distribution is this host's, and so are its releases: Debian 12 has Slurm 22.05, Debian 13 has 24.11,
  Ubuntu 24.04 has 23.11, and likewise cloud-init, chrony.
- The kernel is this host's, and it has no NFS: a share is a folder on the host with the server's name, which
  `mount.nfs` binds (`MOUNT`). The server does answer on NFS's port
  (`nfs_service`).
- The kernel's uptime is this host's. slurmd would conclude that the machine has not booted since it was asked
  for, so it is told that the machine has (`SLURMD`).
- DHCP is only used in cloud-init's first stage. Then the address is set as systemd-nspawn has it.
- A container has no clock of its own: chrony is installed, but does not run.
- cloud-init recognises a cloud by the hardware's vendor. A program in place of `dmidecode` names it (`node`
  does not read it), and hides that the machine is a container.
- Google's guest agent and OS Login are Debian's packages, where the distribution has them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from infra.program import locations
from localcloud import images
from node.bootstrap.vm import packages
from node.design.model import ClusterDesign, Host
from node.design.storage import Mount
from node.system import subprocesses
from tests.support.containers import base_image

SHARES = "/srv/shares"
"""The folder on machines with the file systems of the cloud's servers."""
GOOGLES = ("google-guest-agent", "google-compute-engine-oslogin")
MASKED = (
    *packages.MASKED,
    # These are units of NFS's packages, which cannot work with this kernel.
    *("rpcbind.service", "rpcbind.socket", "nfs-client.target", "rpc-statd-notify.service"),
    *("run-rpc_pipefs.mount", "nfs-blkmap.service"),
)
MOUNT = f"""\
#!/bin/sh
# In place of NFS's: the share of this name, which is a folder of the host's.
exec /bin/mount --no-mtab --bind "{SHARES}/${{1#*:/}}" "$2"
"""
SLURMD = """\
#!/bin/sh
# This machine has just booted, whatever the kernel's uptime says.
exec /usr/sbin/slurmd.distrib -b "$@"
"""
AGENT = """\
[Daemons]
network_daemon = false
clock_skew_daemon = false
accounts_daemon = true
[NetworkInterfaces]
setup = false
[InstanceSetup]
network_enabled = false
set_boto_config = false
set_host_keys = false
"""
"""The configuration of Google's guest agent: it must not set the network, nor keys, which cloud-init sets."""
_SCRIPT = """
set -e
root=$1 lower=$2 upper=$3 work=$4
shift 4
mount -t overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
rm -f "$root/etc/resolv.conf"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
printf '#!/bin/sh\\nexit 101\\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
for unit in $MASKED; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
chroot "$root" apt-get --quiet update
for google in $GOOGLES; do
    if chroot "$root" apt-cache show "$google" >/dev/null 2>&1; then set -- "$@" "$google"; fi
done
chroot "$root" apt-get --quiet --yes --no-install-recommends install "$@"
for place in /usr/sbin/slurmd /usr/sbin/mount.nfs; do
    chroot "$root" dpkg-divert --local --rename --divert "$place.distrib" --add "$place"
done
rm -rf "$root/usr/sbin/policy-rc.d" "$root/etc/hosts" "$root/etc/resolv.conf" "$root"/etc/ssh/ssh_host_* \
    "$root"/var/lib/apt/lists/*_* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
cp "$lower/etc/hosts" "$root/etc/hosts"
"""


@functools.cache
def layers() -> tuple[Path, ...]:
    """Return the image's layers, the uppermost first. The test is skipped if they cannot be made."""
    import pytest

    base = base_image()
    wanted = _packages()
    text = "".join([_SCRIPT, MOUNT, SLURMD, AGENT, *MASKED, *GOOGLES, *wanted])
    name = f"{base.parent.name}-clouds-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        path = images.cached(
            locations.cache_root() / "images", name, lambda draft: _make(base, draft, wanted), _say
        )
    except images.ImageError as error:
        pytest.skip(str(error))
    return (path / "disk", base)


def _packages() -> list[str]:
    """Return the packages that both clouds' steps install for a cluster with shares."""
    found: dict[str, None] = {}
    for provider, kind in (("aws", "efs"), ("gcp", "filestore")):
        head = Host("controller", "controller", ("controller", "login"), "m5.large", 50)
        design = ClusterDesign(
            "t", "test", provider, "vm", (head,), (), (Mount("/home", kind),), trains=False
        )
        for role in ("controller", "compute"):
            found |= dict.fromkeys(packages.of_role(design, role))
    return list(found)


def _make(base: Path, draft: Path, wanted: list[str]) -> None:
    """Make the layer with the packages.

    Raises:
        ImageError: apt failed.
    """
    _say("making the image of the clouds' machines in the tests (once, some minutes)")
    root, upper, work = (draft / name for name in ("root", "disk", "work"))
    for folder in (root, upper, work):
        folder.mkdir()
    apart = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private",
             "--pid", "--fork", "--kill-child", "--mount-proc")  # fmt: skip
    places = [str(path) for path in (root, base, upper, work)]
    done = subprocess.run(
        [*apart, "sh", "-c", _SCRIPT, "sh", *places, *wanted],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={
            **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
            "PATH": subprocesses.SEARCH,
            "HOME": "/root",
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
            "DPKG_FORCE": "unsafe-io",
            "MASKED": " ".join(MASKED),
            "GOOGLES": " ".join(GOOGLES),
        },
    )
    if done.returncode:
        raise images.ImageError("\n".join(["the image cannot be made:", *done.stdout.splitlines()[-12:]]))
    for place, text in (("slurmd", SLURMD), ("mount.nfs", MOUNT)):
        program = upper / "usr" / "sbin" / place
        program.write_text(text)
        program.chmod(0o755)
    (upper / "etc" / "default").mkdir(exist_ok=True)
    (upper / "etc" / "default" / "instance_configs.cfg").write_text(AGENT)
    for folder in (root, work):
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
