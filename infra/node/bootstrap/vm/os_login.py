"""OS Login: whom the project lets in is known on each machine, with the same number everywhere.

The image's guest agent sets up NSS, PAM and sshd where the machine's metadata says `enable-oslogin`. What it
does not do: a home on the shared disk with a key for the cluster's other machines. Who people are is known
only when they come, so that is done at each one's first login.

Nor does it end what a user has written into `~/.ssh/authorized_keys`: it is the command that gives sshd OS
Login's keys which asks whether the user may log in, and PAM asks nothing (`updatePAMsshdPamless` in
GoogleCloudPlatform/guest-agent). A key in that file would let its owner in for ever, after OS Login's own has
ended and after the role was taken away. So where people come in from outside such files do not count.
"""

from __future__ import annotations

import time

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.vm.people import KEY

NSSWITCH = "etc/nsswitch.conf"
AGENT_SECONDS = 60.0
POLL_SECONDS = 0.5
PAM = "etc/pam.d/sshd"
PROGRAM = "usr/local/lib/slurm-stacks/first-login"
# Whatever the agent adds to the file, before or after us: what comes of the program does not depend on it.
PAM_TEXT = "session optional pam_exec.so quiet /{program}\n"
PROGRAM_TEXT = """\
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
umask 077
mkdir -p "$1/.ssh" && cd "$1/.ssh" || exit 1
exec 9>.{key}.lock && flock 9
[ -e {key}.pub ] || {{ rm -f {key}; ssh-keygen -q -t ed25519 -N "" -C "$2@{cluster}" -f {key} </dev/null; }}
grep -qxFf {key}.pub authorized_keys 2>/dev/null || cat {key}.pub >>authorized_keys
' first-login "$home" "$PAM_USER"
"""


SSHD = "etc/ssh/sshd_config.d/10-slurm-stacks.conf"
"""Before others: of each setting sshd takes the first value, and that of a Match that fits before all."""
SSHD_TEXT = """\
# Written by slurm-stacks: OS Login says who comes in from outside, and until when. Keys in files have no end:
# they count between the cluster's own machines only.
AuthorizedKeysFile none
"""
SSHD_INSIDE = """\
Match Address {cidr}
    AuthorizedKeysFile .ssh/authorized_keys
"""


def prepare(context: Context) -> None:
    """Wait until people are known here; where they log in, have their first login make what they need.

    Raises:
        TimeoutError: the agent has not set up OS Login.
    """
    deadline = time.monotonic() + AGENT_SECONDS
    while not _known(context):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"OS Login is not set up on this machine: google-guest-agent has not written it to "
                f"/{NSSWITCH} for {AGENT_SECONDS:g} s; is the metadata key enable-oslogin TRUE, and has the "
                "image the agent?"
            )
        time.sleep(POLL_SECONDS)
    if context.people:
        _first_login(context)
    if context.role in ("controller", "login"):
        _only_os_login(context)


def _known(context: Context) -> bool:
    """Whether the machine asks OS Login for users."""
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
    files.place(program, text.encode(), 0o755)
    before = pam.read_text() if pam.exists() else ""
    files.place(pam, files.with_part(before, PAM_TEXT.format(program=PROGRAM)).encode())


def _only_os_login(context: Context) -> None:
    """Of a machine that can be reached from outside: a node is reached from the cluster alone."""
    cidr = context.settings.design.network.cidr
    # Whose the addresses of an existing network are is not known here.
    text = SSHD_TEXT + (SSHD_INSIDE.format(cidr=cidr) if cidr else "")
    file = context.at(SSHD)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.read_text() == text:
        return
    files.place(file, text.encode())
    context.run("systemctl", "try-reload-or-restart", "ssh.service")
