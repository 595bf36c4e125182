"""Makes a home on the shared disk at a user's first login, and a key in it for the cluster's other machines.

Users of OS Login and of a directory are known to a machine only when they log in.
"""

from __future__ import annotations

from node.bootstrap.context import Context
from node.bootstrap.vm.users import KEY, KEY_TEXT
from node.system import files

PAM = "etc/pam.d/sshd"
PROGRAM = "usr/local/lib/slurm-stacks/first-login"
# The line comes first: a later one has PAM read variables from a file of the user's, and this program, which
# runs as root, would have them.
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
[ -d "$home" ] || mkhomedir_helper "$PAM_USER"{umask}
uid=$(echo "$entry" | cut -d: -f3)
gid=$(echo "$entry" | cut -d: -f4)
exec setpriv --reuid "$uid" --regid "$gid" --init-groups --reset-env /bin/sh -c '
"""
    + KEY_TEXT
    + """\
' first-login "$home" "$PAM_USER"
"""
)


def prepare(context: Context) -> None:
    """Have sshd's PAM run the program where users log in."""
    program, pam = context.at(PROGRAM), context.at(PAM)
    for path in (program, pam):
        path.parent.mkdir(parents=True, exist_ok=True)
    site, design = context.settings.site, context.settings.design
    # A directory's homes are as private as those of the stack file's users.
    umask = " 0077" if design.access.directory is not None else ""
    text = PROGRAM_TEXT.format(shared=site.shared, key=KEY, cluster=design.name, umask=umask)
    files.write(program, text.encode(), 0o755)
    before = pam.read_text() if pam.exists() else ""
    after = files.with_part("", PAM_TEXT.format(program=PROGRAM)) + files.without_part(before)
    files.write(pam, after.encode())
