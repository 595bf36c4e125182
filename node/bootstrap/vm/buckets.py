"""Mounts buckets: of S3 with Amazon's Mountpoint, of Cloud Storage with Google's Cloud Storage FUSE.

Both clients run as root, act with the machine's own identity and let every user in. Users have that identity
only where the stack file opens the metadata address (`open_metadata`).
"""

from __future__ import annotations

import hashlib
import os

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm import apt, apt_repositories, disks
from node.design.storage import Mount
from node.system import files
from node.system.cloud_api import ServiceError

VERSION = "1.24.0"
"""The version of Mountpoint."""
URL = "https://s3.amazonaws.com/mountpoint-s3-release/{version}/{machine}/mount-s3-{version}-{machine}.tar.gz"
SHA256 = {
    "x86_64": "a99bea20510eaabaf9d7cbfe95ab221a11005cacaa77cfc311a2912bbbdbfd72",
    "arm64": "9f97026c9feabd0e4d128206f1846ee317e6c4f21846914dfe4268d110c892c4",
}
"""Machine -> the hash of Mountpoint's archive, as Arch Linux's package aws-mountpoint-s3-bin has it."""
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64"}
FOLDER = "opt/aws/mountpoint-s3"
FUSE = ("libfuse2t64", "fuse3")
"""The library that Mountpoint is linked with, and the program that unmounts."""
GCSFUSE = "gcsfuse"
REPOSITORY = "https://packages.cloud.google.com/apt"
KEY_URL = f"{REPOSITORY}/doc/apt-key.gpg"
OPEN = ("--dir-mode", "0777", "--file-mode", "0666")
MOUNT_SECONDS = 60.0
ATTEMPTS = 10


def install(context: Context) -> list[str]:
    """Install what this machine's buckets need, and return what was missing.

    Raises:
        ServiceError: It cannot be fetched, or is not what it should be.
    """
    kinds = {mount.kind for mount in context.mounts()}
    installed: list[str] = []
    if "s3" in kinds:
        installed += apt.install(context, FUSE)
        if not context.at(f"{FOLDER}/bin/mount-s3").exists():
            _mountpoint(context)
            installed.append(f"mount-s3 {VERSION}")
    if "gcs" in kinds and apt.missing(context, [GCSFUSE]):
        source = f"{REPOSITORY} gcsfuse-{apt.suite(context)} main"
        apt_repositories.add_repository(context, GCSFUSE, KEY_URL, source)
        installed += apt.install(context, [GCSFUSE])
    return installed


def _mountpoint(context: Context) -> None:
    # Imported late to save time: each boot imports this module, but few machines mount buckets.
    from node.system import http_client

    machine = ARCHITECTURES[os.uname().machine]
    url = URL.format(version=VERSION, machine=machine)
    answer = http_client.call("GET", url, dict, timeout=60.0)
    if answer.status != 200:
        raise ServiceError(f"{url}: HTTP status {answer.status}", status=answer.status)
    digest = hashlib.sha256(answer.body).hexdigest()
    if digest != SHA256[machine]:
        raise ServiceError(
            f"{url}: its SHA-256 is {digest}, and should be {SHA256[machine]}: it is not installed",
            status=answer.status,
        )
    archive = files.folder(context.at("var/tmp/slurm-stacks"), 0o700) / "mount-s3.tar.gz"
    archive.write_bytes(answer.body)
    target = files.folder(context.at(FOLDER))
    context.run("tar", "--extract", "--gzip", "--no-same-owner", f"--file={archive}", f"--directory={target}")
    archive.unlink()


def s3(context: Context, mount: Mount) -> None:
    name, prefix = mount.bucket()
    ways = ("--allow-delete", "--allow-overwrite", *OPEN) if mount.writable else ("--read-only",)
    below = ("--prefix", prefix) if prefix else ()
    client = str(context.at(f"{FOLDER}/bin/mount-s3"))
    _mount(context, mount, client, "--allow-other", *ways, *below, name)


def gcs(context: Context, mount: Mount) -> None:
    name, prefix = mount.bucket()
    ways = OPEN if mount.writable else ("-o", "ro")
    below = ("--only-dir", prefix.rstrip("/")) if prefix else ()
    # Without this option, folders that only the names of objects imply are not shown.
    client = f"/usr/bin/{GCSFUSE}"
    _mount(context, mount, client, "-o", "allow_other", "--implicit-dirs", *ways, *below, name)


def _mount(context: Context, mount: Mount, *command: str) -> None:
    """Mount a bucket. Both clients go on in the background as soon as it is mounted.

    They are a service of their own: systemd ends what the boot leaves behind when the boot is over.

    Raises:
        RuntimeError: Something else is mounted there.
    """
    target = context.at(mount.path.lstrip("/"))
    if present := disks.mounted(str(target)):
        if present[0].startswith("fuse"):
            return
        raise RuntimeError(f"{mount.path}: {present[1]} is mounted there, and should be {mount.existing}")
    files.folder(target)
    # A grant of Google takes effect some minutes after it is made.
    unit = f"--unit=slurm-stacks-bucket-{mount.path.strip('/').replace('/', '-')}"
    service = ("systemd-run", "--quiet", "--collect", "--service-type=forking", unit, "--")
    try:
        context.run(*service, *command, str(target), timeout=MOUNT_SECONDS, attempts=ATTEMPTS, pause=12.0)
    except CommandError as error:
        journal = context.run("journalctl", unit, "--lines=5", "--output=cat", allow=(0, 1)).strip()
        raise RuntimeError(
            f"{mount.path}: {mount.existing} could not be mounted; does it exist, and does its own policy "
            f"let this machine's role in?\n{journal or error}"
        ) from error
