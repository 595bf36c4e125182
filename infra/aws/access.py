"""How SSH reaches a cluster's machines: at a public address, or through Session Manager."""

from __future__ import annotations

import shlex

from infra.clouds.commands import PYTHON

OPERATIONS = "operations.aws"
"""The module that the stack's commands run."""


def ssh_proxy(region: str, mode: str, key: str | None, python: str = PYTHON) -> str | None:
    """Return the ProxyCommand of OpenSSH for an access mode. `None` means that none is needed.

    Args:
        mode: `access.mode`: ssh | ssm.
        key: The name of the EC2 key pair. Without one each connection sends a key of the user's along.
        python: The command that starts this project's Python with this project in its path.
    """
    if mode != "ssm":
        return None
    if key is not None:
        return shlex.join(session(region, "%h", "%p"))
    return f"{python} -m {OPERATIONS} proxy --region {region} --instance %h --user %r --port %p"


def session(region: str, instance: str, port: str) -> list[str]:
    """Return the AWS CLI's command that connects its standard input and output with a port of an instance."""
    line = ["aws", "ssm", "start-session", "--region", region, "--target", instance]
    return [*line, "--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={port}"]
