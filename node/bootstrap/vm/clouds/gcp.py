"""The interface to Compute Engine: the node by the instance's name, disks by device names, OS Login."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.vm import apt
from node.bootstrap.vm.clouds.interface import LOGS, Disk
from node.bootstrap.vm.metadata_guard import Openings
from node.bootstrap.vm.users import KEY, KEY_TEXT
from node.design.model import Mount, Settings
from node.design.sites import GcpSite, MountSource
from node.elastic.drivers.gce.names import node_of
from node.gcp.metadata import GPU_MAINTENANCE_SECONDS, Metadata
from node.gcp.services import SCHEME, Bucket, Secret
from node.system import files
from node.system import http_client as http
from node.system.cloud_api import Notices
from node.system.waiting import wait_until

# Sends the machine's logs to Cloud Logging, where they outlive the machine, and its metrics.
#
# Google's Ops Agent does this. A machine works without it: a failure here is reported, but the boot goes on.

PACKAGE = "google-cloud-ops-agent"
REPOSITORY = "https://packages.cloud.google.com/apt"
KEY_URL = f"{REPOSITORY}/doc/apt-key.gpg"
PLACES = f"{REPOSITORY} {PACKAGE}-{{suite}}-2 main"
"""The repository of the agent's second major version, for which the configuration below is."""
CONFIG = f"etc/{PACKAGE}/config.yaml"
SERVICE = f"{PACKAGE}.service"


def ship(context: Context) -> str:
    """Make the agent send this role's logs to Cloud Logging.

    Raises:
        SkipStep: The settings do not want it, or the agent could not be installed.
    """
    if not asked_for(context):
        raise SkipStep("the settings ask for no logs in Cloud Logging")
    config = context.at(CONFIG)
    try:
        install_agent(context)
        config.parent.mkdir(parents=True, exist_ok=True)
        # Every JSON text is YAML.
        if files.write(config, json.dumps(wanted(context), indent=1).encode()):
            context.run("systemctl", "restart", SERVICE, timeout=100.0)
    except (OSError, CommandError) as error:
        context.report.content["facts"]["logs"] = f"not in Cloud Logging: {error}"
        raise SkipStep(f"logs stay on this machine: {str(error).splitlines()[0]}") from error
    return "sent to Cloud Logging"


def asked_for(context: Context) -> bool:
    """Return whether the settings say that logs go to Cloud Logging."""
    return context.settings.site.of(GcpSite).logs


def install_agent(context: Context) -> None:
    """Install Google's agent.

    Raises:
        ServiceError: The repository's key cannot be fetched.
        CommandError: The agent cannot be installed.
    """
    if apt.missing(context, [PACKAGE]):
        source = PLACES.format(suite=apt.suite(context))
        apt.add_repository(context, PACKAGE, KEY_URL, source, attempts=2)
        apt.install(context, [PACKAGE])


def wanted(context: Context) -> dict[str, object]:
    """Return the configuration in addition to the agent's own (system log, metrics): one log per file."""
    log = context.folders.log
    receivers = {
        name.removesuffix(".log"): {
            "type": "files",
            "include_paths": [str(log / name)],
            "record_log_file_path": True,
        }
        for name in LOGS[context.role]
    }
    pipelines = {"slurm": {"receivers": list(receivers)}} if receivers else {}
    return {"logging": {"receivers": receivers, "service": {"pipelines": pipelines}}}


# OS Login: the project's users are known on every machine, with the same number everywhere.
#
# The image's guest agent sets up NSS, PAM and sshd if the machine's metadata has `enable-oslogin`. But it
# makes no home on the shared disk, and no key for the cluster's other machines. Users are known only when
# they log in, so both are made at each user's first login.
#
# The agent also does not disable keys in a user's `~/.ssh/authorized_keys`. Only the command that gives OS
# Login's keys to sshd checks whether the user may log in; PAM does not (`updatePAMsshdPamless` in
# GoogleCloudPlatform/guest-agent). With a key in that file its owner could log in for ever, even after OS
# Login's key has expired and the role was revoked. So these files are not used for logins from outside.

NSSWITCH = "etc/nsswitch.conf"
AGENT_SECONDS = 60.0
POLL_SECONDS = 0.5
PAM = "etc/pam.d/sshd"
PROGRAM = "usr/local/lib/slurm-stacks/first-login"
# The program's effect does not depend on lines that the agent adds before or after this one.
PAM_TEXT = "session optional pam_exec.so quiet /{program}\n"
PROGRAM_TEXT = (
    """\
#!/bin/sh
# Written by slurm-stacks, called by PAM as root: who logs in for the first time gets a home on the shared
# disk, and a key in it with which all machines of the cluster let them in.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
[ "$PAM_TYPE" = open_session ] || exit 0
entry=$(getent passwd "$PAM_USER") || exit 0
home=$(echo "$entry" | cut -d: -f6)
case "$home" in {shared}/?*) ;; *) exit 0 ;; esac
[ -e "$home/.ssh/{key}.pub" ] && exit 0
# Before the boot has mounted the shared disk there is nothing to keep.
mountpoint -q {shared} || exit 0
[ -d "$home" ] || mkhomedir_helper "$PAM_USER"
uid=$(echo "$entry" | cut -d: -f3)
gid=$(echo "$entry" | cut -d: -f4)
exec setpriv --reuid "$uid" --regid "$gid" --init-groups --reset-env /bin/sh -c '
"""
    + KEY_TEXT
    + """\
' first-login "$home" "$PAM_USER"
"""
)


SSHD = "etc/ssh/sshd_config.d/10-slurm-stacks.conf"
"""The file sorts before others, because sshd uses the first value of each setting. A matching Match block has
priority."""
SSHD_TEXT = """\
# Written by slurm-stacks: OS Login says who comes in from outside, and until when. Keys in files have no end:
# they count between the cluster's own machines only.
AuthorizedKeysFile none
"""
SSHD_INSIDE = """\
Match Address {cidr}
    AuthorizedKeysFile .ssh/authorized_keys
"""


def prepare_os_login(context: Context) -> None:
    """Wait until the machine knows the users. Where users log in, it prepares their first login.

    Raises:
        TimeoutError: The agent has not set up OS Login in time.
    """
    late = (
        f"OS Login is not set up on this machine: google-guest-agent has not written it to /{NSSWITCH} for "
        f"{AGENT_SECONDS:g} s; is the metadata key enable-oslogin TRUE, and has the image the agent?"
    )
    wait_until(lambda: _known(context), AGENT_SECONDS, late, POLL_SECONDS)
    if context.has_users:
        _first_login(context)
    if context.role in ("controller", "login"):
        _only_os_login(context)


def _known(context: Context) -> bool:
    """Return whether the machine asks OS Login for users."""
    try:
        lines = context.at(NSSWITCH).read_text().splitlines()
    except FileNotFoundError:
        return False
    return any(line.startswith("passwd:") and "oslogin" in line.split() for line in lines)


def _first_login(context: Context) -> None:
    program, pam = context.at(PROGRAM), context.at(PAM)
    for path in (program, pam):
        path.parent.mkdir(parents=True, exist_ok=True)
    site, design = context.settings.site, context.settings.design
    text = PROGRAM_TEXT.format(shared=site.shared, key=KEY, cluster=design.name)
    files.write(program, text.encode(), 0o755)
    before = pam.read_text() if pam.exists() else ""
    files.write(pam, files.with_part(before, PAM_TEXT.format(program=PROGRAM)).encode())


def _only_os_login(context: Context) -> None:
    """Make sshd ignore authorized_keys for logins from outside.

    Nodes do not need it: they are reached only from the cluster.
    """
    cidr = context.settings.design.network.cidr
    # In an existing network it is not known which addresses belong to the cluster.
    text = SSHD_TEXT + (SSHD_INSIDE.format(cidr=cidr) if cidr else "")
    file = context.at(SSHD)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.read_text() == text:
        return
    files.write(file, text.encode())
    context.run("systemctl", "try-reload-or-restart", "ssh.service")


BY_ID = "dev/disk/by-id"
LOCAL_SSD = ("google-local-ssd-*", "google-local-nvme-ssd-*")
"""The names of a machine's local SSDs by the image's udev rules: on SCSI, and on NVMe."""
NAMING = "/usr/bin/google_set_hostname"


class Gcp:
    """A machine on Compute Engine."""

    scheme = SCHEME
    # Google's time source on every machine. munge refuses machines whose clocks differ by minutes.
    time = ("google.sources", "server metadata.google.internal prefer iburst\n")
    # No distribution has Google's client. It is installed in a virtual environment (`cloud_client`).
    packages: tuple[str, ...] = ("python3-venv",)
    storage: tuple[str, ...] = ("filestore", "gcs")
    # Cloud Storage refuses faster writes of an object.
    write_seconds = 1.0
    tells_controller = False
    # The address is also the server of names, leases (DHCP) and time. Each user's processes make OS Login's
    # look-ups, and systemd-networkd, which renews the lease, runs as a user of its own.
    metadata_openings = Openings(
        ports=(("udp", 53), ("tcp", 53), ("udp", 67), ("udp", 123)), paths=("/computeMetadata/v1/oslogin/",)
    )

    def __init__(self, settings: Settings) -> None:
        self._metadata = Metadata()
        self._design = settings.design
        self._cluster = settings.design.name

    def notices(self, node: str) -> Notices:
        """Return the source of notices.

        Machines with GPUs get a notice of their host's maintenance an hour ahead, other machines a minute.
        """
        partition = self._design.partition_of(node)
        if partition is None or partition.accelerator is None:
            return self._metadata
        return Metadata(maintenance_seconds=GPU_MAINTENANCE_SECONDS)

    def node(self) -> str:
        instance = self._metadata.name()
        try:
            return node_of(self._cluster, instance)
        except ValueError as error:
            raise SystemExit(f"{error}: this machine cannot know which node it is") from error

    def bucket(
        self, url: str, *, attempts: int = http.ATTEMPTS, timeout: float = http.TIMEOUT_SECONDS
    ) -> Bucket:
        return Bucket(url, self._metadata.token, attempts=attempts, timeout=timeout)

    def secret(self, name: str) -> Secret:
        return Secret(name, self._metadata.token)

    def keep_name(self, context: Context) -> None:
        """Move the image's program aside that would restore the instance's name with each network start."""
        # With the diversion the package's next version is moved aside too.
        divert = ("dpkg-divert", "--quiet", "--local", "--rename", "--divert", f"{NAMING}.distrib")
        context.run(*divert, "--add", NAMING)

    def disk(self, context: Context, mount: Mount) -> Disk:
        given = context.settings.site.mounts.get(mount.path, MountSource()).device
        path = str(given or f"{BY_ID}/google-slurm-stacks-{PurePosixPath(mount.path).name}")
        device = context.at(path.lstrip("/"))
        name = device.name.removeprefix("google-")
        return Disk(f"disk {name}", lambda: str(device) if device.exists() else None)

    def scratch(self, context: Context) -> list[str]:
        found = [path for pattern in LOCAL_SSD for path in context.at(BY_ID).glob(pattern)]
        whole = [path for path in found if "-part" not in path.name]
        return [str(path) for path in sorted(whole, key=_order)]

    def prepare_users(self, context: Context) -> None:
        prepare_os_login(context)

    def watched(self, context: Context) -> bool:
        return context.role == "compute"

    def install_agent(self, context: Context) -> None:
        if not asked_for(context):
            raise SkipStep("the settings ask for no logs in Cloud Logging")
        install_agent(context)

    def ship_logs(self, context: Context) -> str:
        return ship(context)


def _order(path: Path) -> tuple[str, int]:
    """Sort `google-local-ssd-2` before `google-local-ssd-10`."""
    kind, _, number = path.name.rpartition("-")
    return kind, int(number) if number.isdigit() else 0
