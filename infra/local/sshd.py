"""The SSH server of a container machine, from outside of its network: `python -m infra.local.sshd RUN`.

The machine's network is its own, and this host has no address in it. Run as OpenSSH's ProxyCommand, this
module finds the login machine, has it accept the stack's key, and becomes a relay in it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from infra import bundle, pages
from infra.errors import EXIT_REFUSED, UserError
from infra.local import way_in
from infra.local.cloud.nspawn import SEARCH, enter
from infra.local.site import RunDirectory, user
from infra.node.bootstrap.sshd import PORT
from infra.runner import folders
from infra.ssh.target import Target

NO_SERVER = (
    "stack {stack} has no SSH server: {why}. `ssh`, `exec` and `cp` of ./cluster need none. "
    "A stack with one has machines that boot: local-machines (as root), aws-cpu, gcp-cpu."
)


def target(project: Path, stack: str, run: RunDirectory) -> Target:
    """The login machine of a cluster of container machines, for OpenSSH's programs.

    The first call makes a key for the stack, in its state folder; it opens these machines and nothing else.

    Raises:
        UserError: exit 3; there is no SSH server.
    """
    if not run.containers:
        why = "its machines are processes of this machine"
        raise UserError(NO_SERVER.format(stack=stack, why=why), EXIT_REFUSED)
    machine = way_in.login(run)
    keys = [] if machine is None else _host_keys(run, machine[0])
    if machine is None or not keys:
        why = "its login machine is not on, or has not told its host keys"
        raise UserError(NO_SERVER.format(stack=stack, why=why), EXIT_REFUSED)
    key = _key(folders.make_state_dir(project, stack))
    words = ["env", f"PYTHONPATH={bundle.ROOT}", sys.executable, "-m", "infra.local.sshd"]
    proxy = shlex.join([*words, str(run.path), f"{key}.pub"]).replace("%", "%%")
    return Target(machine[0], user(), tuple(keys), PORT, proxy_command=proxy, identity=str(key))


def _host_keys(run: RunDirectory, host: str) -> list[str]:
    try:
        report = json.loads((run.bucket / "boot" / f"{host}.json").read_text())
        return [str(key) for key in report["host_keys"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _key(folder: Path) -> Path:
    """The stack's own private key, made on first use."""
    key = folder / "ssh_key"
    if not key.with_suffix(".pub").exists():
        draft = folder / f".{key.name}.{os.getpid()}"
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slurm-stacks", "-f", str(draft)]
        try:
            subprocess.run(make, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise UserError(
                f"`ssh-keygen` is not on PATH: install OpenSSH's client ({pages.OPENSSH})", EXIT_REFUSED
            ) from None
        draft.replace(key)
        draft.with_suffix(f"{draft.suffix}.pub").replace(key.with_suffix(".pub"))
    return key


def main(path: str, key: str) -> None:
    """Become the relay."""
    run = RunDirectory(Path(path))
    machine = way_in.login(run)
    if machine is None:
        sys.exit(f"no machine of the cluster in {run.path} runs that people could log in to")
    # The home folder that all machines share.
    accepted = run.shared / user() / ".ssh" / "authorized_keys"
    public = Path(key).read_text()
    there = accepted.read_text() if accepted.exists() else ""
    if public not in there:
        accepted.parent.mkdir(mode=0o700, exist_ok=True)
        accepted.touch(mode=0o600)
        accepted.write_text(there + public)
    words = [*enter(machine[1], [f"PATH={SEARCH}"]), "nc", "-N", "127.0.0.1", str(PORT)]
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(*sys.argv[1:])
