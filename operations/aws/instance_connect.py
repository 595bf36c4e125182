"""The user's SSH key on EC2 instances, by EC2 Instance Connect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operations.aws.account import explained
from operations.clouds.own_keys import own_key


def bring_key(client: Any, instance: str, user: str, home: Path) -> None:
    """Make a machine accept one of the user's own keys for a minute (EC2 Instance Connect).

    Args:
        client: The boto3 client of `ec2-instance-connect`.

    Raises:
        UserError: The user has no such key, or AWS refuses.
    """
    with explained():
        client.send_ssh_public_key(
            InstanceId=instance, InstanceOSUser=user, SSHPublicKey=own_key(home / ".ssh")
        )
