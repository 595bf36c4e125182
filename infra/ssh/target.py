"""A login machine as plain data, on its way from the Pulumi program to the process that runs `ssh`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from infra.errors import UserError

VARIABLE = "SLURM_STACKS_SSH"
"""The environment variable of that process which holds a `Target` as JSON."""

CONNECT_SECONDS = 20
"""The commands of Session Manager and of Identity-Aware Proxy take seconds before ssh hears anything."""
PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Target:
    """Where `ssh` goes, and how it knows that it has arrived."""

    host: str
    """Its address; behind a proxy, whatever the proxy's command takes for one."""
    user: str
    host_keys: tuple[str, ...]
    """Public keys as the cluster published them."""
    port: int = 22
    proxy_command: str | None = None
    """OpenSSH's ProxyCommand, with its tokens (%h, %p, %r)."""
    identity: str | None = None
    """A private key's file, which only `ssh` reads; None: the agent's keys and the usual files."""
    connect_seconds: int = CONNECT_SECONDS
    """How long one attempt to connect may take."""
    patience: int = PATIENCE_SECONDS
    """How long a machine that cannot be reached is tried again, in seconds."""
    ask: str | None = None
    """A command whose JSON has, as `login_user`, the name of whoever runs it: in place of `user`, where
    everybody has a name of their own on the machine."""

    @property
    def name(self) -> str:
        return f"{self.user}@{self.host}"


def parse(text: str | None) -> Target:
    """A target from its JSON.

    Raises:
        UserError: it is not one.
    """
    try:
        fields = json.loads(text or "")
        return Target(**{**fields, "host_keys": tuple(fields["host_keys"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{VARIABLE} does not hold a login machine: {error}") from error
