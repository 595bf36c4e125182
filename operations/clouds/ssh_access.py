"""SSH access to a cluster's login machine: which machine it is, its host keys, and the `ssh` command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import NotUpError, UserError
from infra.program import launcher
from infra.program.launcher import Run
from infra.program.stack import Stack
from infra.ssh import Target
from node.bootstrap import report
from node.bootstrap.vm.users import KEY
from node.design.model import Access, ClusterDesign
from operations import host_keys, openssh
from operations.clouds.cloud import ALIVE, Cloud, Machine

if TYPE_CHECKING:
    from infra.outputs.contract import ClusterOutput


@dataclass(frozen=True, slots=True)
class Login:
    """A login machine that is up, and how `ssh` reaches it."""

    host: str
    target: Target


def find(stack: Stack, design: ClusterDesign, cloud: Cloud) -> Login:
    """Find the login machine from its cloud and its boot report, without Pulumi or its state.

    Args:
        design: The design of the cluster that is up.

    Raises:
        NotUpError: There is no login machine, or it has not published its host keys yet.
        UserError: There are no credentials, or the cloud refuses.
    """
    host = design.login_hosts()[0].name
    machines = cloud.machines(*ALIVE, host=host)
    if not machines:
        raise NotUpError(
            f"stack {stack.name} is not up: bring it up with `./cluster up --stack {stack.name}`",
            code="cluster.not-up",
        )
    (machine, *_) = machines
    if machine.state != "running":
        raise UserError(
            f"the {host} of stack {stack.name}, {machine.id}, is {machine.state}: "
            f"`./cluster up --stack {stack.name}` starts it if it is off, and waits until it has booted",
            code="ssh.machine-stopped",
        )
    boot = None if machine.bucket is None else boot_report(cloud, machine.bucket, host)
    if boot is None or not boot["host_keys"]:
        raise NotUpError(
            f"the {host} of stack {stack.name}, {machine.id}, is booting and has not published its SSH "
            f"host keys: `./cluster up --stack {stack.name}` shows how far it is",
            code="ssh.booting",
        )
    return Login(host, target(cloud, design.access, machine, boot["host_keys"], launcher.here(stack.project)))


def target(
    cloud: Cloud, access: Access, machine: Machine, host_keys: Sequence[str], run: Run = launcher.anywhere
) -> Target:
    """How `ssh` reaches a machine of the cluster.

    Args:
        host_keys: The host keys from the machine's boot report.
    """
    return Target(
        host=machine.ssh_host(access),
        user=cloud.user(access),
        host_keys=tuple(host_keys),
        proxy_command=cloud.proxy(access, run),
    )


# From a login machine to the controller, which port 22 may be open to from there only. The user's key for the
# cluster's machines is in the home folder that they share (`node.bootstrap.vm.users`).
_INSIDE = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "none",
    "UserKnownHostsFile": "none",
    "IdentityFile": f"~/.ssh/{KEY}",
    "LogLevel": "ERROR",
}
CONTROLLER = "controller"


def controller_command(
    stack: Stack, cloud: Cloud, login: Login, folder: Path, argv: Sequence[str]
) -> list[str]:
    """Return the `ssh` command that runs `argv` on the controller as root, by way of the login machine.

    The controller is known by the host keys that it has published.

    Args:
        folder: Where the login machine's host keys are kept.

    Raises:
        NotUpError: There is no controller, or it has not published its host keys yet.
        UserError: The cloud refuses.
    """
    line = ["sudo", "-n", *argv]
    return command(login.target, folder, _hop(stack, cloud, login, shlex.join(line)) or line, tty=False)


def controller_line(stack: Stack, cloud: Cloud, login: Login, line: str) -> str:
    """Return the shell line for the login machine that runs a shell line on the controller, as the user.

    Raises:
        NotUpError, UserError: As for `controller_command`.
    """
    return shlex.join(_hop(stack, cloud, login, line)) or line


def _hop(stack: Stack, cloud: Cloud, login: Login, line: str) -> list[str]:
    """Return the command that takes a shell line on to the controller; empty if users log in there."""
    if login.host == CONTROLLER:
        return []
    keys = host_keys.parse_host_keys(_host_keys(stack, cloud, CONTROLLER))
    known = shlex.join(["/usr/bin/printf", "%%s\\n", *(f"{CONTROLLER} {key}" for key in keys)])
    options = {**_INSIDE, "KnownHostsCommand": known}
    words = [f"-o{name}={value}" for name, value in options.items()]
    return ["ssh", "-F", "none", *words, "--", CONTROLLER, line]


def _host_keys(stack: Stack, cloud: Cloud, host: str) -> list[str]:
    machine = next(iter(cloud.machines(*ALIVE, host=host)), None)
    boot = None if machine is None or machine.bucket is None else boot_report(cloud, machine.bucket, host)
    if boot is None or not boot["host_keys"]:
        raise NotUpError(
            f"the {host} of stack {stack.name} has not published its SSH host keys: `./cluster up --stack "
            f"{stack.name}` shows how far it is",
            code="ssh.booting",
        )
    return list(boot["host_keys"])


def published(cluster: ClusterOutput, cloud: Cloud, run: Run) -> Target:
    """How `ssh` reaches the login machine of a cluster that is known by its outputs.

    In the mode `ssh` no cloud is asked, except for a user's own name there.

    Args:
        cluster: The outputs, which have `login.access` and whose values have been checked.

    Raises:
        UserError: There are no credentials, or the cloud refuses.
    """
    login = cluster.login
    if login is None or login.access is None:
        raise ValueError("the outputs of a cluster without a login machine")
    access = Access(login.access.mode, key=login.access.key, user=login.access.user)
    return Target(
        host=login.address if access.mode == "ssh" else login.access.machine,
        user=cloud.user(access),
        host_keys=tuple(login.host_keys),
        proxy_command=cloud.proxy(access, run),
    )


def boot_report(cloud: Cloud, bucket: str, host: str) -> dict[str, Any] | None:
    """Return a machine's boot report; `None` if there is none yet.

    Every process of a machine may be able to write its report, so it is checked (`report.displayable`).

    Raises:
        UserError: The cloud refuses, or does not answer.
    """
    body = cloud.read(bucket, f"boot/{host}.json")
    return None if body is None else report.displayable(body)


def command(target: Target, folder: Path, argv: Sequence[str], *, tty: bool) -> list[str]:
    """Return the `ssh` command for `argv`, or for a shell.

    Args:
        folder: Where the machine's host keys are kept.
        tty: Whether the command gets a terminal.
    """
    known = host_keys.keep_host_keys(folder, target.host_keys)
    words = openssh.arguments(target, known)
    # ssh takes options only before the host, which is the last word.
    place = words.index("--")
    words[place:place] = ["-t"] if tty else []
    return [*words, *([shlex.join(argv)] if argv else [])]
