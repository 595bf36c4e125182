"""From this machine onto a cluster's login machine: which it is, its host keys, and the command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.clouds.cloud import ALIVE, PYTHON, Cloud, Machine
from infra.errors import NotUpError, UserError
from infra.node.model import Access, ClusterDesign
from infra.runner import folders
from infra.ssh import hostkeys, openssh
from infra.ssh.target import Target


@dataclass(frozen=True, slots=True)
class Login:
    """A login machine that is up, and how `ssh` gets there."""

    host: str
    target: Target


def find(project: Path, stack: str, design: ClusterDesign, cloud: Cloud) -> Login:
    """The login machine, asked of its cloud and of its boot report: neither Pulumi nor its state is needed.

    Args:
        design: of the cluster that is up.

    Raises:
        NotUpError: there is none, or it has not come so far that it could be known.
        UserError: there are no credentials, or the cloud refuses.
    """
    host = design.login_hosts()[0].name
    there = cloud.machines(*ALIVE, host=host)
    if not there:
        raise NotUpError(f"stack {stack} is not up: bring it up with `./cluster up --stack {stack}`")
    (machine, *_) = there
    if machine.state != "running":
        raise UserError(
            f"the {host} of stack {stack}, {machine.id}, is {machine.state}: start it with "
            f"`{cloud.start_line(machine)}`, and try again in a minute"
        )
    report = None if machine.bucket is None else boot_report(cloud, machine.bucket, host)
    if report is None or not report["host_keys"]:
        raise NotUpError(
            f"the {host} of stack {stack}, {machine.id}, is booting and has not published its SSH host keys: "
            f"`./cluster up --stack {stack}` shows how far it is"
        )
    return Login(host, target(cloud, design.access, machine, report["host_keys"], anywhere(project)))


def target(
    cloud: Cloud, access: Access, machine: Machine, host_keys: Sequence[str], python: str = PYTHON
) -> Target:
    """A machine of the cluster's, as `ssh` finds it.

    Args:
        host_keys: from its boot report.
    """
    return Target(
        host=cloud.host(machine, access),
        user=cloud.user(),
        host_keys=tuple(host_keys),
        proxy_command=cloud.proxy(access, python),
    )


def anywhere(project: Path) -> str:
    """`Cloud.proxy`'s `python` for a command that is started from any folder."""
    words = ["env", f"PYTHONPATH={project}", str(project / PYTHON)]
    return shlex.join(words).replace("%", "%%")


def boot_report(cloud: Cloud, bucket: str, host: str) -> dict[str, Any] | None:
    """What a machine says of its boot; None: nothing yet.

    Raises:
        UserError: the cloud refuses, or does not answer.
    """
    body = cloud.read(bucket, f"boot/{host}.json")
    try:
        content: dict[str, Any] | None = None if body is None else json.loads(body)
    except ValueError:
        return None
    return content


def command(project: Path, stack: str, login: Login, argv: Sequence[str], *, tty: bool) -> list[str]:
    """The `ssh` command for `argv`, or for a shell.

    Args:
        tty: whether the command shall have a terminal.
    """
    known = hostkeys.keep(folders.make_state_dir(project, stack), login.target.host_keys)
    words = openssh.arguments(login.target, known)
    # Options come before the host, which is the last word.
    place = words.index("--")
    words[place:place] = ["-t"] if tty else []
    return [*words, *([shlex.join(argv)] if argv else [])]
