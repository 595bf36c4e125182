"""The lines for the login machine's shell. They are POSIX, quote every value, and can run more than once."""

from __future__ import annotations

import shlex

from node.bootstrap.vm.training import COMPLETE

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
