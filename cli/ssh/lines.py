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

# The workload is moved to its place by a rename, so it is complete when it is there.
_UNPACK = """\
set -eu
bench={bench} name={name}
target="$bench/$name/workload"
if [ ! -d "$target" ]; then
  mkdir -p "$bench/$name"
  # Every user who runs the same training makes a folder in it.
  chmod 1777 "$bench/$name" 2>/dev/null || true
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
  mv -T "$draft/new/workload" "$target" || [ -d "$target" ]
fi
printf '%s\\n' "$target"
"""


def wait_for_environment(apps: str, digest: str, seconds: int) -> str:
    """Waits until the training environment `<apps>/envs/<digest>` is complete, at most for so many
    seconds."""
    env = shlex.quote(f"{apps}/envs/{digest}")
    return _WAIT.format(env=env, complete=COMPLETE, seconds=seconds)


def unpack(shared: str, staged: str, digest: str) -> str:
    """Unpacks an archive with this SHA-256 to `<shared>/bench/<staged>/workload`, unless that exists.

    The archive comes on standard input, in base64.
    """
    bench = shlex.quote(f"{shared}/bench")
    return _UNPACK.format(bench=bench, name=shlex.quote(staged), digest=shlex.quote(digest))


def submit(tool: str, folder: str) -> str:
    """Submits the script on standard input as the run in `<shared>/bench/<folder>`, and prints the job's
    id."""
    return f"exec {shlex.quote(tool)} submit {shlex.quote(f'--run={folder}')}"


def cancel(tool: str, folder: str) -> str:
    """Ends the run's job. It never fails and takes seconds, because a destroy must go on."""
    run = f"timeout {CANCEL_SECONDS} {shlex.quote(tool)} cancel {shlex.quote(f'--run={folder}')}"
    return f"{run} || echo {shlex.quote(NOT_CANCELLED)} >&2"
