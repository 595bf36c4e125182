"""Adds who logs in, and has no account of Slurm, to the default account.

The controller's boot adds the users whom it knows (`node.accounting.enrolment`). A user of a directory, of
OS Login, or of a later useradd comes by a login: sshd, su, sudo and cron all open a session of PAM, and PAM
calls a program as root. Root of this machine is slurmdbd's administrator by munge, so the program needs no
server of ours: it runs sacctmgr. Nobody can add somebody else, because PAM says who has logged in.

A login never fails for this, and waits at most LOGIN_SECONDS. Each user has at most one program at work.

On Debian and Ubuntu services include common-session before pam_env reads files of the user. So no user can
put a variable, such as LD_PRELOAD, into the environment of this program.
"""

from __future__ import annotations

import shlex
from pathlib import Path, PurePath

from node.bootstrap.context import Context
from node.bootstrap.vm.users import FIRST_USER, NOBODY
from node.slurm import environment
from node.system import files

PAM = ("etc/pam.d/common-session", "etc/pam.d/common-session-noninteractive")
PROGRAM = "usr/local/lib/slurm-stacks/enrol"
# `seteuid`: su and sudo run as the user who calls them.
PAM_TEXT = f"session optional pam_exec.so quiet seteuid /{PROGRAM}\n"
LOGIN_SECONDS = 3
"""How long a login waits. The program goes on, so a controller that is slow loses nothing."""
SLURM_SECONDS = 30
"""The time limit of sacctmgr."""
KNOWN_MINUTES = 60
"""How long it is believed that a user has an account: a restored backup may have forgotten it."""
PROGRAM_TEXT = """\
#!/bin/sh
# Written by slurm-stacks, called by PAM as root: who logs in and has no account of Slurm gets one.
PATH={path}
folder=/{run}
ask_slurm() {{ timeout {slurm_seconds} {env} sacctmgr "$@" 9>&-; }}
if [ "$1" = enrol ]; then
    accounts=$(ask_slurm --noheader --parsable2 list association {cluster} "user=$2" format=account) || exit 1
    [ -n "$accounts" ] || ask_slurm --immediate add user "$2" {cluster} account={account} || exit 1
    : >"$folder/$3"
    exit 0
fi
[ "$PAM_TYPE" = open_session ] || exit 0
entry=$(getent passwd "$PAM_USER") || exit 0
name=${{entry%%:*}}
uid=${{entry#*:*:}}
uid=${{uid%%:*}}
{{ [ "$uid" -ge {first} ] && [ "$uid" -ne {nobody} ]; }} || exit 0
[ -z "$(find "$folder/$uid" -mmin -{minutes} 2>/dev/null)" ] || exit 0
case $name in -* | *[,=\\|\\'\\"]*) exit 0 ;; esac
mkdir -m 700 "$folder" 2>/dev/null
# The child keeps the lock until it ends.
exec 9>"$folder/$uid.lock"
if flock -n 9; then setsid "$0" enrol "$name" "$uid" </dev/null >/dev/null 2>&1 & fi
exec 9>&-
# A further login does not wait.
[ -e "$folder/$uid" ] || flock -w {login_seconds} "$folder/$uid.lock" true
exit 0
"""
RUN = "run/slurm-stacks-accounts"


def prepare(context: Context) -> None:
    """Have PAM call the program while there is accounting, and else not any more."""
    design = context.settings.design
    if design.slurm.accounting:
        program = context.at(PROGRAM)
        program.parent.mkdir(parents=True, exist_ok=True)
        text = program_text(design.name, design.slurm.default_account, context.folders.slurm_conf)
        files.write(program, text.encode(), 0o755)
    for pam in filter(Path.exists, map(context.at, PAM)):
        before = pam.read_text()
        after = files.with_part(before, PAM_TEXT) if design.slurm.accounting else files.without_part(before)
        if after != before:
            files.write(pam, after.encode())


def program_text(cluster: str, account: str, slurm_conf: PurePath) -> str:
    """Return the program's text, for a cluster and its default account."""
    return PROGRAM_TEXT.format(
        path=environment.PATH,
        run=RUN,
        env=shlex.join(environment.words(slurm_conf)),
        cluster=shlex.quote(f"cluster={cluster}"),
        account=shlex.quote(account),
        first=FIRST_USER,
        nobody=NOBODY,
        minutes=KNOWN_MINUTES,
        slurm_seconds=SLURM_SECONDS,
        login_seconds=LOGIN_SECONDS,
    )
