"""Connects OpenSSH to the SSH server of a container machine: `python -m cli.providers.local.sshd RUN KEY`.

The machine has its own network, in which this host has no address. OpenSSH runs this module as its
ProxyCommand: it finds the login machine, adds the stack's key to the accepted keys, and becomes a relay.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from infra import bundle
from infra.errors import EXIT_REFUSED, UserError
from infra.ssh import Target
from localcloud.nspawn import enter
from node.bootstrap.vm.host_keys import PORT
from node.system.subprocesses import SEARCH
from operations import pages, programs
from operations.access import StackUp
from operations.local import machine_access
from operations.local.run_directory import RunDirectory, user

NO_SERVER = (
    "{cluster} has no SSH server: {why}. `ssh`, `exec` and `cp` of ./cluster need none. "
    "A stack with one has machines that boot: local-machines (as root), aws-cpu, gcp-cpu."
)


def target(up: StackUp, run: RunDirectory) -> Target:
    """Return the login machine of a cluster of container machines, for OpenSSH's programs.

    The first call makes a key for the stack in its state folder. The key gives access to these machines only.

    Raises:
        UserError: Exit 3; there is no SSH server.
    """
    if not run.containers:
        why = "its machines are processes of this machine"
        raise UserError(NO_SERVER.format(cluster=up.named, why=why), EXIT_REFUSED, code="ssh.no-server")
    machine = machine_access.login(run)
    keys = [] if machine is None else run.report(machine[0]).get("host_keys")
    if machine is None or not keys:
        why = "its login machine is not on, or has not reported its host keys"
        raise UserError(NO_SERVER.format(cluster=up.named, why=why), EXIT_REFUSED, code="ssh.no-server")
    key = _key(up.make_folder())
    proxy = proxy_command(run.path, key)
    return Target(machine[0], user(), tuple(keys), PORT, proxy_command=proxy, identity=str(key))


def proxy_command(run: Path, key: Path) -> str:
    """Return the ProxyCommand of OpenSSH that starts this module, from any folder.

    Args:
        run: The run directory of the cluster.
        key: The stack's private key.
    """
    # -P: whoever uses the stanza of `ssh-config` may stand in a folder with modules of these names.
    words = ["env", f"PYTHONPATH={bundle.ROOT}", sys.executable, "-P", "-m", "cli.providers.local.sshd"]
    return shlex.join([*words, str(run), f"{key}.pub"]).replace("%", "%%")


def _key(folder: Path) -> Path:
    """Return the stack's own private key; make it on first use."""
    key = folder / "ssh_key"
    if not key.with_suffix(".pub").exists():
        draft = folder / f".{key.name}.{os.getpid()}"
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slurm-stacks", "-f", str(draft)]
        done = programs.capture(make)
        if done.failed:
            raise UserError(
                f"`ssh-keygen` makes no key ({done.err.strip()}): install OpenSSH's client ({pages.OPENSSH})",
                EXIT_REFUSED,
                code="ssh.no-keygen",
            )
        draft.replace(key)
        draft.with_suffix(f"{draft.suffix}.pub").replace(key.with_suffix(".pub"))
    return key


def main(path: str, key: str) -> None:
    """Find the login machine, accept the stack's key there, and become the relay."""
    run = RunDirectory(Path(path))
    machine = machine_access.login(run)
    if machine is None:
        sys.exit(f"no login machine of the cluster in {run.path} runs")
    # All machines share the home folder.
    accepted = run.shared / user() / ".ssh" / "authorized_keys"
    public = Path(key).read_text()
    accepted_keys = accepted.read_text() if accepted.exists() else ""
    if public not in accepted_keys:
        accepted.parent.mkdir(mode=0o700, exist_ok=True)
        accepted.touch(mode=0o600)
        accepted.write_text(accepted_keys + public)
    words = [*enter(machine[1], [f"PATH={SEARCH}"]), "nc", "-N", "127.0.0.1", str(PORT)]
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(*sys.argv[1:])
