"""A login machine as plain data, which the Pulumi program passes to the process that runs `ssh`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from infra.errors import UserError

VARIABLE = "SLURM_STACKS_SSH"
"""The environment variable that holds a `Target` as JSON for that process."""

CONNECT_SECONDS = 20
"""This is long, because the commands of Session Manager and of Identity-Aware Proxy take seconds before `ssh`
receives anything."""
PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Target:
    """Where `ssh` connects to, and how it recognizes the machine.

    Attributes:
        host: The address. Behind a proxy it is whatever the proxy's command takes for one.
        host_keys: The public keys that the cluster published.
        proxy_command: The ProxyCommand of OpenSSH, with its tokens (%h, %p, %r).
        identity: The file of a private key, which only `ssh` reads. `None` means the agent's keys and the
            usual files.
        connect_seconds: How many seconds one attempt to connect may take.
        patience: For how many seconds a machine that cannot be reached is tried again.
        ask: A command whose JSON output names, as `login_user`, the user who runs it. That name takes the
            place of `user` where everybody has a name of their own on the machine.
    """

    host: str
    user: str
    host_keys: tuple[str, ...]
    port: int = 22
    proxy_command: str | None = None
    identity: str | None = None
    connect_seconds: int = CONNECT_SECONDS
    patience: int = PATIENCE_SECONDS
    ask: str | None = None

    @property
    def name(self) -> str:
        return f"{self.user}@{self.host}"


def parse(text: str | None) -> Target:
    """Read a target from its JSON.

    Raises:
        UserError: The text is not a target.
    """
    try:
        fields = json.loads(text or "")
        return Target(**{**fields, "host_keys": tuple(fields["host_keys"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{VARIABLE} does not hold a login machine: {error}", code="ssh.variable") from error
