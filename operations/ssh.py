"""The commands of `OpenSshShell`'s resources on the engineer's machine: `operations.ssh VERB …`.

The login machine is given in the environment (`target.VARIABLE`), so that a change of it does not change the
resource's command line. Every verb is idempotent; its result is on standard output.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from infra import bundle
from infra.benchmark import Workload
from infra.errors import EXIT_INTERRUPTED, UserError
from infra.ssh import VARIABLE, Target, parse
from node.bootstrap.vm.training import COMPLETE
from operations import guard as guards
from operations import openssh, programs

# The lines for the login machine's shell. They are POSIX, quote every value, and can run more than once.

CANCEL_SECONDS = 15
NOT_CANCELLED = "the job was not cancelled: it ends with the cluster, or by scancel on its login machine"
_WAIT = """\
set -eu
env={env} waited=0
while [ ! -e "$env"/{complete} ]; do
  if [ "$waited" -ge {seconds} ]; then
    printf '%s\\n' "the training environment $env is not there after {seconds} s. The login machine's boot \
makes it: the command logs shows how far it came; then run up again" >&2
    exit 1
  fi
  if [ $((waited % 30)) -eq 0 ]; then
    printf 'waiting for the training environment %s (%s s)\\n' "$env" "$waited" >&2
  fi
  sleep 1
  waited=$((waited + 1))
done
printf '%s\\n' "$env"
"""

# An administrator stages as root, so that everybody may use it.
_AS_ADMINISTRATOR = """\
set --
if [ "$(id -u)" != 0 ] && sudo -n true </dev/null >/dev/null 2>&1; then set -- sudo -n; fi
exec "$@" /bin/sh -c {script}
"""

# The folders have the mode of /tmp, so another user may have made these names. Jobs run what is staged as
# their own user, so only root's files and one's own are used. Root takes the folder before it looks at it,
# so that its former owner cannot exchange it afterwards. The workload is moved to its place by a rename, so
# it is complete when it is there.
_UNPACK = """\
set -eu
umask 022
bench={bench} name={name} me=$(id -u)
folder="$bench/$name" target="$bench/$name/workload"
trusted() {{
  [ -d "$1" ] && [ ! -L "$1" ] && case $(stat -c %u -- "$1") in 0 | "$me") ;; *) false ;; esac
}}
refuse() {{
  printf '%s\\n' "$1 belongs to $(stat -c %U -- "$1"), whose files would run as you. Have it removed, or \
have an administrator of the cluster run the same training: what an administrator stages is for all" >&2
  exit 1
}}
mkdir -p "$bench"
if [ "$me" = 0 ] && ! trusted "$bench"; then
  chown -h 0:0 "$bench"
  trusted "$bench" || {{ rm -f "$bench" && mkdir "$bench"; }}
  chmod 1777 "$bench"
fi
trusted "$bench" || refuse "$bench"
[ -e "$folder" ] || [ -L "$folder" ] || mkdir "$folder" 2>/dev/null || true
if [ "$me" = 0 ] && ! trusted "$folder"; then
  chown -h 0:0 "$folder"
  trusted "$folder" || {{ rm -f "$folder" && mkdir "$folder"; }}
fi
trusted "$folder" || refuse "$folder"
if ! trusted "$target"; then
  if [ "$me" != 0 ] && {{ [ -e "$target" ] || [ -L "$target" ]; }}; then refuse "$target"; fi
  # Every user who runs the same training makes a folder in it.
  chmod 1777 "$folder" 2>/dev/null || true
  draft=$(mktemp -d "$bench/.$name.XXXXXX")
  trap 'rm -rf "$draft"' EXIT
  trap 'exit 129' HUP INT TERM
  base64 -d >"$draft/archive" || true
  if [ "$(sha256sum <"$draft/archive" | cut -c1-64)" != {digest} ]; then
    echo 'the workload arrived damaged or cut short, and is not used: run up again' >&2
    exit 1
  fi
  mkdir "$draft/new"
  # Not -C: GNU tar reads backslashes in its value as escapes, and would unpack elsewhere.
  (cd "$draft/new" && tar -x --no-same-owner -f ../archive)
  if [ "$me" = 0 ] && ! trusted "$target" && {{ [ -e "$target" ] || [ -L "$target" ]; }}; then
    mv -T "$target" "$draft/former"
  fi
  mv -T "$draft/new/workload" "$target" || true
  trusted "$target" || refuse "$target"
fi
printf '%s\\n' "$target"
"""


def wait_line(apps: str, digest: str, seconds: int) -> str:
    """Wait until the environment `<apps>/envs/<digest>` is complete, at most for so many seconds."""
    env = shlex.quote(f"{apps}/envs/{digest}")
    return _WAIT.format(env=env, complete=COMPLETE, seconds=seconds)


def unpack_line(shared: str, staged: str, digest: str) -> str:
    """Unpacks an archive with this SHA-256 to `<shared>/bench/<staged>/workload`, unless that exists.

    The archive comes on standard input, in base64. Files of a user who is neither root nor oneself are never
    used: root replaces them, anybody else is refused.
    """
    bench = shlex.quote(f"{shared}/bench")
    script = _UNPACK.format(bench=bench, name=shlex.quote(staged), digest=shlex.quote(digest))
    return _AS_ADMINISTRATOR.format(script=shlex.quote(script))


def submit_line(tool: str, folder: str) -> str:
    """Submit the script on standard input as the run in `<shared>/bench/<folder>`, and print the job's id."""
    return f"exec {shlex.quote(tool)} submit {shlex.quote(f'--run={folder}')}"


def cancel_line(tool: str, folder: str) -> str:
    """End the run's job. It never fails and takes seconds, because a destroy must go on."""
    run = f"timeout {CANCEL_SECONDS} {shlex.quote(tool)} cancel {shlex.quote(f'--run={folder}')}"
    return f"{run} || echo {shlex.quote(NOT_CANCELLED)} >&2"


STAGE_SECONDS = 300.0
SUBMIT_SECONDS = 120.0
GUARD_SECONDS = 60.0
MARGIN_SECONDS = 60.0
"""How much longer than its own limit a wait on the login machine may take."""


def named(target: Target) -> Target:
    """Return the target with the user's login name. On some clouds a command returns this name.

    Raises:
        UserError: That command failed; the message is the command's.
    """
    if target.ask is None:
        return target
    answer = programs.capture(shlex.split(target.ask))
    if answer.failed:
        raise UserError(
            answer.err.strip() or f"`{target.ask}` ended with status {answer.status}", code="ssh.tool-failed"
        )
    return replace(target, user=str(json.loads(answer.out)["login_user"]), ask=None)


def environment(target: Target, options: argparse.Namespace) -> str:
    """Wait for the training environment."""
    line = wait_line(options.apps, options.digest, options.seconds)
    return openssh.run(target, line, seconds=options.seconds + MARGIN_SECONDS, stream=True)


def stage(target: Target, options: argparse.Namespace) -> str:
    """Send the workload, if it is still the one with the requested digest."""
    project = Path(os.environ.get("SLURM_STACKS_PROJECT", ".")).resolve()
    workload = Workload.of(project, options.own)
    if workload.digest != options.digest:
        what = options.own[0] if options.own else f"{project}/workload"
        raise UserError(
            f"{what} was changed while it was being staged: run the command again", code="stage.changed"
        )
    archive = workload.archive()
    line = unpack_line(options.shared, options.staged, bundle.digest(archive))
    return openssh.run(target, line, stdin=base64.encodebytes(archive).decode(), seconds=STAGE_SECONDS)


def submit(target: Target, options: argparse.Namespace) -> str:
    """Submit the script on standard input; the result is the job's id."""
    line = submit_line(options.tool, options.run)
    return openssh.run(target, line, stdin=sys.stdin.read(), seconds=SUBMIT_SECONDS)


def cancel(target: Target, options: argparse.Namespace) -> str:
    """Cancel the run's job if the login machine answers soon: a destroy must go on without it."""
    limit = target.connect_seconds + CANCEL_SECONDS + 5.0
    line = cancel_line(options.tool, options.run)
    try:
        return openssh.run(replace(named(target), patience=0), line, seconds=limit, stream=True)
    except UserError as error:
        print(f"{NOT_CANCELLED} ({error})", file=sys.stderr)
        return ""


def guard(target: Target, options: argparse.Namespace) -> str:
    """Fail if the cluster has jobs that have not ended, or does not answer."""

    def ask() -> str:
        line = f"{shlex.quote(options.tool)} status"
        return openssh.run(replace(named(target), patience=0), line, seconds=GUARD_SECONDS)

    guards.check(ask)
    return ""


VERBS = {"environment": environment, "stage": stage, "submit": submit, "cancel": cancel, "guard": guard}
OPTIONS = {
    "environment": ("apps", "digest", "seconds"),
    "stage": ("shared", "staged", "digest"),
    "submit": ("tool", "run"),
    "cancel": ("tool", "run"),
    "guard": ("tool",),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, names in OPTIONS.items():
        verb_parser = verbs.add_parser(verb)
        for name in names:
            verb_parser.add_argument(f"--{name}", required=True, type=int if name == "seconds" else str)
        if verb == "stage":
            verb_parser.add_argument("own", nargs="*", help="the files of a user's program, its script first")
    options = parser.parse_args()
    try:
        target = parse(os.environ.get(VARIABLE))
        if options.verb not in ("cancel", "guard"):
            target = named(target)
        print(VERBS[options.verb](target, options).rstrip("\n"))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
