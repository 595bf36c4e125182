"""The way to a cluster's machines by SSH: to a public address, or through Session Manager."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from infra.aws.account import explained
from infra.clouds.cloud import PYTHON
from infra.clouds.keys import own_key

USER = "ubuntu"
"""Of Ubuntu's images; an image of one's own has to have it."""
OPERATIONS = "infra.aws.operations"


def ssh_proxy(region: str, mode: str, key: str | None, python: str = PYTHON) -> str | None:
    """OpenSSH's ProxyCommand for a way in.

    Args:
        mode: `access.mode`: ssh | ssm.
        key: the EC2 key pair's name; without one each connection brings a key of the user's along.
        python: the command that starts this project's Python with this project in its path.
    """
    if mode != "ssm":
        return None
    if key is not None:
        return shlex.join(session(region, "%h", "%p"))
    return f"{python} -m {OPERATIONS} proxy --region {region} --instance %h --user %r --port %p"


def session(region: str, instance: str, port: str) -> list[str]:
    """The AWS CLI's command that connects its standard input and output with a port of an instance."""
    line = ["aws", "ssm", "start-session", "--region", region, "--target", instance]
    return [*line, "--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={port}"]


def bring_key(client: Any, instance: str, user: str, home: Path) -> None:
    """Have a machine accept one of the user's own keys for a minute (EC2 Instance Connect).

    Args:
        client: of `ec2-instance-connect`.

    Raises:
        UserError: there is no such key, or AWS refuses.
    """
    with explained():
        client.send_ssh_public_key(
            InstanceId=instance, InstanceOSUser=user, SSHPublicKey=own_key(home / ".ssh")
        )
